"""How does a run go out to other tools?"""
