"""A line that is cut before the loop has connected it."""

from inferometer.serve.http_line import Line


class Transport:
    is_closed = False

    def close(self):
        self.is_closed = True


def test_a_line_that_is_cut_while_it_connects_is_closed_then():
    asked, transport = [], Transport()
    line = Line(lambda *one: asked.append(one), lambda _: None)
    line.cut()
    line.connection_made(transport)
    assert transport.is_closed
    line.data_received(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert asked == []
