"""A client that runs the first blocks of a model itself and sends what crosses at a cut it chooses.

This folder is also a wheel of its own, `poolpipe-client`, in which it is the package
`poolpipe_client`: it imports nothing of the product, and its files each other by relative imports.
"""
