"""Which requests are asked: when do they arrive, how long are they, and which of their tokens do they share?"""
