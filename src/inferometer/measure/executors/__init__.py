"""Where is work done that falls into parts: here, in processes on all cores, or on a Ray cluster?"""
