/** Texts counted in code points. A JavaScript string counts UTF-16 code units, of which some code points need two. */

/** @param {string} text @param {number} at */
function isLowHalf(text, at) {
  return (text.charCodeAt(at) & 0xfc00) === 0xdc00;
}

/** Length of a text in code points. @param {string} text */
export function lengthOf(text) {
  let length = text.length;
  for (let at = 0; at < text.length; at += 1) if (isLowHalf(text, at)) length -= 1;
  return length;
}

/** The text without its last `count` code points, or undefined if it has fewer. @param {string} text @param {number} count */
export function withoutLast(text, count) {
  let end = text.length;
  for (let left = count; left > 0; left -= 1) {
    if (end === 0) return undefined;
    end -= isLowHalf(text, end - 1) ? 2 : 1;
  }
  return text.slice(0, end);
}

/** @param {string} before @param {string} after @returns {import("./types.js").TextChange} */
export function textChange(before, after) {
  let common = after === before || after.startsWith(before) ? before.length : 0;
  while (common < before.length && before[common] === after[common]) common += 1;
  // Do not split a pair of which only the second half differs.
  if (isLowHalf(before, common) || isLowHalf(after, common)) common -= 1;
  return { deleted: lengthOf(before.slice(common)), text: after.slice(common) };
}
