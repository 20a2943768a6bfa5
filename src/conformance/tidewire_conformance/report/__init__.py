"""Reports of a conformance run: terminal, HTML, JUnit XML, JSON and an SVG badge."""
