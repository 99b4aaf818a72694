package install

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

// verifySignature looks for the key that made a detached OpenPGP signature, and gives its ID.
// A key that has expired since still stands for what it signed before; one that was
// revoked does not.
func verifySignature(keys []string, signed, signature []byte, now func() time.Time) (string, error) {
	config := &packet.Config{Time: now}
	for i, armor := range keys {
		ring, err := openpgp.ReadArmoredKeyRing(strings.NewReader(armor))
		if err != nil {
			return "", fmt.Errorf("key %d of the registry cannot be read: %w", i+1, err)
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
	return "", errors.New("none of the registry's keys has made it")
}
