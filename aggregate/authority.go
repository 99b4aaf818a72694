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
	// A front proxy's certificate is signed by its CA directly or through one or two
	// intermediates. Verifying longer chains only costs CPU.
	maxChain = 5
	// Certificates without key identifiers are checked against every member, as long as
	// there are at most this many.
	maxCandidates = 50
	// A member has one certificate for each of its kube-apiservers, and a new one after
	// each renewal.
	maxVerified = 4096
)

// fingerprint is a hash over all certificates that a client presents, in their order.
type fingerprint [sha256.Size]byte

// verdict is the member that a certificate belongs to, while the certificate is valid.
type verdict struct {
	member      *member
	from, until time.Time
}

// verify returns the one member whose authority signed the client certificates of a
// connection. The TLS handshake has already proven that the client holds the private
// key.
func (r *Roster) verify(chain []*x509.Certificate) (*member, error) {
	if len(chain) == 0 {
		return nil, errors.New("no client certificate: this port serves only the front proxies of member clusters; " +
			"connect to the main port instead")
	}
	if len(chain) > maxChain {
		return nil, fmt.Errorf("%d client certificates, more than %d", len(chain), maxChain)
	}
	now := r.clock.Now()
	key := fingerprintOf(chain)
	if m := r.cachedVerdict(key, now); m != nil {
		return m, nil
	}
	v, err := r.verifyChain(chain, now)
	if err != nil {
		return nil, err
	}
	r.cacheVerdict(key, v)
	return v.member, nil
}

func (r *Roster) verifyChain(chain []*x509.Certificate, now time.Time) (verdict, error) {
	candidates := r.candidates(chain)
	if len(candidates) > maxCandidates {
		return verdict{}, fmt.Errorf("the client certificate has no authority key identifier, and %d clusters could have signed it; "+
			"reissue it with an authority key identifier", len(candidates))
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
		if other := r.foreignAuthority(paths, m); other != "" {
			return verdict{}, ambiguous(m.name, other)
		}
		from, until := validity(paths[0])
		found = append(found, verdict{m, from, until})
	}
	switch {
	case len(found) == 0:
		return verdict{}, errors.New("the client certificate is not a valid one signed by the request-header CA of any cluster " +
			"that API groups are exposed to")
	case len(found) > 1:
		return verdict{}, ambiguous(found[0].member.name, found[1].member.name)
	}
	m, name := found[0].member, chain[0].Subject.CommonName
	if len(m.allowedNames) > 0 && !slices.Contains(m.allowedNames, name) {
		return verdict{}, fmt.Errorf("the client certificate's common name %q is not one that cluster %s allows for its front proxy (%s)",
			name, m.name, strings.Join(m.allowedNames, ", "))
	}
	return found[0], nil
}

// ambiguous returns the error for a certificate that two members could have issued,
// because one member's authority signed the other's. Choosing one would be a guess.
func ambiguous(one, other string) error {
	return fmt.Errorf("the client certificate could be of cluster %s or of cluster %s; give each a request-header CA of its own", one, other)
}

// candidates returns the members that may have signed the chain, by the key identifiers
// in the certificates. Of a thousand members that is usually one. No client can cause a
// thousand signature checks by sending an arbitrary certificate.
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

// foreignAuthority returns another member whose authority's key is on a path to this
// member, or "". Such a path could belong to either member. The other member may be
// missing among the candidates, because the issuer of a certificate chooses its key
// identifiers.
func (r *Roster) foreignAuthority(paths [][]*x509.Certificate, m *member) string {
	for _, path := range paths {
		for _, c := range path {
			if owner, ok := r.owners[string(c.RawSubjectPublicKeyInfo)]; ok && owner != m.name {
				return owner
			}
		}
	}
	return ""
}

// validity returns the period in which every certificate of a path is valid.
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

func (r *Roster) cachedVerdict(key fingerprint, now time.Time) *member {
	r.mu.Lock()
	defer r.mu.Unlock()
	if v, ok := r.verified[key]; ok && !now.Before(v.from) && !now.After(v.until) {
		return v.member
	}
	return nil
}

// cacheVerdict caches a positive verdict, so that all requests of a connection cost one
// verification. Negative verdicts are not cached: any client could fill the cache with
// them.
func (r *Roster) cacheVerdict(key fingerprint, v verdict) {
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
