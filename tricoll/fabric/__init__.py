"""What the kernels run on: one module a fabric, behind one small protocol."""
