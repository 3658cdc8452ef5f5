from . import reference_solution as reference
from .reference_solution import *


class WholeFrames(reference.Channel):
    def send(self, data):
        self.stream.sock.sendall(self.FRAME_HEADER.pack(len(data), 0) + data)
        self.stream.sock.sendall(self.FLUSHER)
