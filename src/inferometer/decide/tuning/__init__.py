"""Which changes of a server's settings help under its traffic, by how much, and how sure is that?"""
