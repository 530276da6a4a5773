"""The pure core: no clock, socket, file or logger. Time is an argument; the same input gives the same answer."""
