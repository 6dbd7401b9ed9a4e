# a copy of rendezvous.py
