"""The status below a text leaves the text as it would be without the status, in every width and for every text."""

import io

import pyte
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from tidewire.terminal.status_area import StatusArea

# The emulator breaks a line with a wide character at its end later than terminals do, so texts that contain some consist of
# them alone, and fill lines with an even number of cells.
NARROW = st.lists(st.text(st.sampled_from("abc \n\né"), max_size=30), max_size=12)
WIDE = st.lists(st.text(st.sampled_from("宽😀\n"), max_size=15), max_size=12)
SIZED_PIECES = st.one_of(
    st.tuples(st.integers(8, 30), NARROW), st.tuples(st.sampled_from(range(8, 30, 2)), WIDE)
)


def shown(columns, pieces, *, status=0, redraws=()):
    """Return the lines of a terminal after a text was written in pieces."""
    screen = pyte.HistoryScreen(columns, 10, history=1000)
    screen.set_mode(pyte.modes.LNM)  # As a terminal device converts line feeds.
    stream, file = pyte.Stream(screen), io.StringIO()
    area = StatusArea(
        Console(file=file, force_terminal=True, width=columns, height=10),
        lambda _width: [Text(f"status {at}") for at in range(status)],
    )
    for at, piece in enumerate(pieces):
        area.write(piece)
        if at in redraws:
            area.redraw()
    with area:
        pass
    stream.feed(file.getvalue())
    old = ["".join(line[at].data for at in range(columns)) for line in screen.history.top]
    lines = [line.rstrip() for line in [*old, *screen.display]]
    return "\n".join(lines).rstrip(), screen.cursor.hidden


def plain(columns, text):
    """Return the lines of a terminal after a text was written without a status."""
    screen = pyte.HistoryScreen(columns, 10, history=1000)
    screen.set_mode(pyte.modes.LNM)
    pyte.Stream(screen).feed(text)
    old = ["".join(line[at].data for at in range(columns)) for line in screen.history.top]
    return "\n".join(line.rstrip() for line in [*old, *screen.display]).rstrip()


@given(SIZED_PIECES, st.integers(0, 3), st.sets(st.integers(0, 11)))
def test_a_status_changes_nothing_of_the_text(sized_pieces, status, redraws):
    columns, pieces = sized_pieces
    text, cursor_is_hidden = shown(columns, pieces, status=status, redraws=redraws)
    assert text == plain(columns, "".join(pieces))
    assert not cursor_is_hidden


def test_a_tab_does_not_leave_its_line():
    pieces = ["a\tb", "\tc", "\t", "\td"]
    assert shown(20, pieces, status=2, redraws={0, 1, 2, 3})[0] == plain(20, "".join(pieces))


def test_colors_and_links_take_no_cells():
    """A red text, a link, and the line break of `print`, which is written separately."""
    link = "\x1b]8;;http://x\x1b\\link\x1b]8;;\x07"
    for escaped, cells in (("\x1b[1;31mred\x1b[0m", 3), (link, 4)):
        for length in range(1, 20 - cells):
            pieces = ["before\n", escaped + "." * length, "\n", "after"]
            expected = plain(20, "".join(pieces).replace(escaped, "#" * cells))
            text = shown(20, pieces, status=1, redraws={0, 1, 2, 3})[0]
            assert text.replace("red", "###").replace("link", "####") == expected


def test_a_progress_bar_that_is_drawn_again_stays():
    """The widths of all drawings together fill the line several times, but the bar itself does not."""
    pieces = [f"\rstep {at:03}" for at in range(50)]
    for end in range(1, 50):
        assert shown(20, [*pieces[:end], "\n", "after"], status=1)[0] == f"step {end - 1:03}\nafter"
