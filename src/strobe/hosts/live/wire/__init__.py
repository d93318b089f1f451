"""How bytes travel: frames, sessions over TCP and datagrams, the handshake, TLS, and what coordinator and nodes say."""
