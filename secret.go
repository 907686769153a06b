package eqvps

// Sealer encrypts what must not lie in clear on the host. Each call of Seal
// uses a fresh data key, which is itself encrypted with the server's key
// (envelope encryption).
type Sealer interface {
	// Seal encrypts plain. The same context must be given to Open: it binds the
	// result to what it belongs to, so that one tenant's cannot be put in
	// another's place.
	Seal(plain, context []byte) ([]byte, error)
	// Open decrypts what Seal returned.
	Open(sealed, context []byte) ([]byte, error)
}
