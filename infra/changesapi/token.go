package changesapi

import (
	"encoding/base64"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/change"
)

// token is a decoded continue token. It is valid as long as its plan exists, because plans are
// immutable.
type token struct {
	Plan   string         `json:"plan"` // its UID
	Digest string         `json:"digest"`
	After  change.Address `json:"after"`
}

func newToken(p *v1alpha1.Plan, after change.Address) (string, error) {
	text, err := json.Marshal(token{Plan: string(p.UID), Digest: p.Status.Digest, After: after})
	if err != nil {
		return "", fmt.Errorf("encode continue token: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(text), nil
}

// parseToken returns the address after which a token continues a plan.
func parseToken(text string, p *v1alpha1.Plan) (*change.Address, error) {
	var t token
	decoded, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		err = json.Unmarshal(decoded, &t)
	}
	if err != nil || t.Digest == "" {
		return nil, badParameter("continue", "invalid token: use metadata.continue of the previous page unchanged, or omit it to start over")
	}
	if t.Plan != string(p.UID) || t.Digest != p.Status.Digest {
		return nil, apierrors.NewResourceExpired(fmt.Sprintf(
			"continue: the token belongs to another plan than the current %q with digest %s: omit it to start over", p.Name, p.Status.Digest))
	}
	return &t.After, nil
}
