"""How do other people's files become runs of the same type as ours?"""
