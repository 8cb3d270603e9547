# SPDX-License-Identifier: Apache-2.0
"""The connection room: how any two of our processes connect, once for tasks, environments and the JobMaster.

    transport                  the seam: byte streams, and addresses; `transports` finds one by its name
    sockets                    the transport that is shipped: TCP, and Unix sockets beside it
    tls                        the same encrypted, around any transport; `certificate` and `certificates` beside it
    protection                 which of these it is: TLS off loopback, and no plain text there
    handshake                  how every connection begins: the proof of the secret
    principals                 the users and applications of a service that serves several, and their secrets
    door, unauthenticated      the side that is connected to: who may come in, until when, how many at a time
    opening                    the side that connects; `dialing` does without an event loop
    frames, frame_connection   what is sent then: the head of every frame, and the shell that moves frames
    loop_thread                a thread with an event loop, for synchronous code
    listeners                  whether a process still listens at an address

One contract: TLS is a transport around a transport, so handshake and frames are the same with and without it.
"""
