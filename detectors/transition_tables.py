import numpy as np
def load_tables():
    z=np.load('/tmp/salad/tables.npz'); return z['salad'],z['healthy']
