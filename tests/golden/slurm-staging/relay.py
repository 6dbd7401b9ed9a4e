# a copy of relay.py
