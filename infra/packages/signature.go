package packages

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"time"

	openpgperrors "github.com/ProtonMail/go-crypto/openpgp/errors"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
	openpgp "github.com/ProtonMail/go-crypto/openpgp/v2"
)

// verifySignature verifies a detached OpenPGP signature and returns the ID of its key. A key that
// has expired still counts for signatures that it made before; a revoked one does not.
func verifySignature(keys []string, signed, signature []byte, now func() time.Time) (string, error) {
	config := &packet.Config{Time: now}
	for i, armor := range keys {
		ring, err := openpgp.ReadArmoredKeyRing(strings.NewReader(armor))
		if err != nil {
			return "", fmt.Errorf("parsing key %d of the registry: %w", i+1, err)
		}
		_, signer, err := openpgp.VerifyDetachedSignature(ring, bytes.NewReader(signed), bytes.NewReader(signature), config)
		if errors.Is(err, openpgperrors.ErrUnknownIssuer) {
			continue
		}
		if err != nil {
			return "", err
		}
		return signer.PrimaryKey.KeyIdString(), nil
	}
	return "", errors.New("none of the registry's keys made it")
}
