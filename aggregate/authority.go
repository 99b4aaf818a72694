package aggregate

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// A front proxy's certificate hangs directly below its CA, or one or two
	// intermediates away. Longer chains only make us compute.
	maxChain = 5
	// Certificates without key identifiers are checked against every member, as
	// long as these are few.
	maxCandidates = 50
	// A member has one certificate for each of its kube-apiservers, and a new
	// one now and then.
	maxVerified = 4096
)

// fingerprint is of all certificates that a client presents, in their order.
type fingerprint [sha256.Size]byte

// verdict is a certificate's member, for as long as the certificate is valid.
type verdict struct {
	member      *member
	from, until time.Time
}

// verify finds the one member whose authority signed the certificates that the
// client of a connection presented. That the client holds the key has been
// proven by the TLS handshake.
func (r *Roster) verify(chain []*x509.Certificate) (*member, error) {
	if len(chain) == 0 {
		return nil, errors.New("no client certificate: this port is for the front proxies of member clusters; " +
			"connect to the main port instead")
	}
	if len(chain) > maxChain {
		return nil, fmt.Errorf("%d client certificates, more than %d", len(chain), maxChain)
	}
	now := r.clock.Now()
	key := fingerprintOf(chain)
	if m := r.recall(key, now); m != nil {
		return m, nil
	}
	v, err := r.judge(chain, now)
	if err != nil {
		return nil, err
	}
	r.remember(key, v)
	return v.member, nil
}

func (r *Roster) judge(chain []*x509.Certificate, now time.Time) (verdict, error) {
	candidates := r.candidates(chain)
	if len(candidates) > maxCandidates {
		return verdict{}, fmt.Errorf("the client certificate does not say which key signed it, and could be of %d clusters; "+
			"issue it with an authority key identifier", len(candidates))
	}
	intermediates := x509.NewCertPool()
	for _, c := range chain[1:] {
		intermediates.AddCert(c)
	}
	var found []verdict
	for _, m := range candidates {
		paths, err := chain[0].Verify(x509.VerifyOptions{
			Roots:         m.roots,
			Intermediates: intermediates,
			CurrentTime:   now,
			KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		})
		if err != nil {
			continue
		}
		if other := r.passes(paths, m); other != "" {
			return verdict{}, ambiguous(m.name, other)
		}
		from, until := validity(paths[0])
		found = append(found, verdict{m, from, until})
	}
	switch {
	case len(found) == 0:
		return verdict{}, errors.New("the client certificate is not a valid one of the request-header CA of any cluster " +
			"that something is exposed to")
	case len(found) > 1:
		return verdict{}, ambiguous(found[0].member.name, found[1].member.name)
	}
	m, name := found[0].member, chain[0].Subject.CommonName
	if len(m.allowedNames) > 0 && !slices.Contains(m.allowedNames, name) {
		return verdict{}, fmt.Errorf("the client certificate's name %q is not one that cluster %s allows its front proxy (%s)",
			name, m.name, strings.Join(m.allowedNames, ", "))
	}
	return found[0], nil
}

// ambiguous is for a certificate that two members could have issued, because the
// authority of one stands below the other's. Choosing would be guessing.
func ambiguous(one, other string) error {
	return fmt.Errorf("the client certificate could be of cluster %s or %s; give each a request-header CA of its own", one, other)
}

// candidates gives the members that may have signed, by the key identifiers that
// certificates carry: of a thousand members usually one, and nobody can make us
// check a thousand signatures by sending some certificate.
func (r *Roster) candidates(chain []*x509.Certificate) (found []*member) {
	for _, m := range r.members {
		if slices.ContainsFunc(m.authorities, func(ca *x509.Certificate) bool {
			return slices.ContainsFunc(chain, func(c *x509.Certificate) bool {
				return len(c.AuthorityKeyId) == 0 || len(ca.SubjectKeyId) == 0 || bytes.Equal(c.AuthorityKeyId, ca.SubjectKeyId)
			})
		}) {
			found = append(found, m)
		}
	}
	return found
}

// passes names another member whose authority's key lies on a path to this
// member's. Such a path could be of either, and need not show among the
// candidates: what a certificate says of its signer is up to who made it.
func (r *Roster) passes(paths [][]*x509.Certificate, m *member) string {
	for _, path := range paths {
		for _, c := range path {
			if owner, ok := r.owners[string(c.RawSubjectPublicKeyInfo)]; ok && owner != m.name {
				return owner
			}
		}
	}
	return ""
}

// validity is the time in which every certificate of a path is valid.
func validity(path []*x509.Certificate) (from, until time.Time) {
	from, until = path[0].NotBefore, path[0].NotAfter
	for _, c := range path[1:] {
		if c.NotBefore.After(from) {
			from = c.NotBefore
		}
		if c.NotAfter.Before(until) {
			until = c.NotAfter
		}
	}
	return from, until
}

func (r *Roster) recall(key fingerprint, now time.Time) *member {
	r.mu.Lock()
	defer r.mu.Unlock()
	if v, ok := r.verified[key]; ok && !now.Before(v.from) && !now.After(v.until) {
		return v.member
	}
	return nil
}

// remember keeps a good verdict, so that a connection's requests cost one
// verification together. Bad ones are not kept, since anybody can make
// as many of them as they like.
func (r *Roster) remember(key fingerprint, v verdict) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.verified) >= maxVerified {
		clear(r.verified)
	}
	r.verified[key] = v
}

func fingerprintOf(chain []*x509.Certificate) fingerprint {
	h := sha256.New()
	for _, c := range chain {
		sum := sha256.Sum256(c.Raw)
		h.Write(sum[:])
	}
	return fingerprint(h.Sum(nil))
}
