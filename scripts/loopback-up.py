"""Bring the loopback interface of this network namespace up, then become the command given."""

import fcntl
import os
import socket
import struct
import sys

SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1

if [name for _, name in socket.if_nameindex()] != ["lo"]:
    sys.exit("this is not a network namespace of our own")
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    request = struct.pack("16sh22x", b"lo", 0)
    name, flags = struct.unpack("16sh22x", fcntl.ioctl(any_socket, SIOCGIFFLAGS, request))
    fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh22x", name, flags | IFF_UP))
if len(sys.argv) > 1:
    os.execvp(sys.argv[1], sys.argv[1:])
