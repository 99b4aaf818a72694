package changes

import (
	"encoding/base64"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/plan"
)

// token is where to go on. A plan does not change, so that it holds for as long as the plan is there.
type token struct {
	Plan   string       `json:"plan"` // its UID
	Digest string       `json:"digest"`
	After  plan.Address `json:"after"`
}

func tokenOf(p *v1alpha1.Plan, after plan.Address) (string, error) {
	text, err := json.Marshal(token{Plan: string(p.UID), Digest: p.Status.Digest, After: after})
	if err != nil {
		return "", fmt.Errorf("write where to go on: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(text), nil
}

// position is where a token says to go on with a plan.
func position(text string, p *v1alpha1.Plan) (*plan.Address, error) {
	var t token
	decoded, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		err = json.Unmarshal(decoded, &t)
	}
	if err != nil || t.Digest == "" {
		return nil, refuse("continue", "is not what a page of changes gave: take metadata.continue as it is, or leave it out to begin")
	}
	if t.Plan != string(p.UID) || t.Digest != p.Status.Digest {
		return nil, apierrors.NewResourceExpired(fmt.Sprintf(
			"continue: it is of another plan than the one that is now called %q, whose digest is %s: leave it out to begin anew", p.Name, p.Status.Digest))
	}
	return &t.After, nil
}
