"""`python -m satchel.cext` prints the folder of headers for backends and kernels of your own."""

from satchel.cext import include

if __name__ == "__main__":
    print(include())
