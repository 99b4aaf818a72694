package change

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
)

// KeyedDigest returns a digest that reveals nothing without the salt. 128 bits are enough to notice
// a difference, and short enough for many places.
func KeyedDigest(salt []byte, kind, where string, what []byte) string {
	h := hmac.New(sha256.New, salt)
	for _, part := range [][]byte{[]byte(kind), []byte(where)} {
		var length [8]byte
		for i, n := 0, len(part); i < 8; i, n = i+1, n>>8 {
			length[i] = byte(n)
		}
		h.Write(length[:])
		h.Write(part)
	}
	h.Write(what)
	return hex.EncodeToString(h.Sum(nil)[:16])
}
