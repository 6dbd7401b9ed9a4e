# a copy of scan.py
