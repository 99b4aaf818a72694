// Package aggregate is the face that a workspace shows to the kube-apiservers
// of its member clusters. Each member serves shared API groups by aggregation:
// its kube-apiserver proxies them here. The handler finds out which member
// speaks and for whom, lets it reach only what is exposed to it, keeps the
// member's own controllers from destroying what all share, and passes the
// request on, in process, to the workspace's ordinary chain of handlers.
package aggregate

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"

	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Why a member cannot be served. NewRoster wraps them with the remedy.
var (
	ErrReservedName    = errors.New("reserved cluster name")
	ErrBadAuthority    = errors.New("unusable front proxy authority")
	ErrSharedAuthority = errors.New("front proxy authority shared with another cluster")
	ErrBadGroup        = errors.New("API group that cannot be exposed")
)

// FrontProxy is what a member's kube-apiserver publishes about its front proxy
// in ConfigMap kube-system/extension-apiserver-authentication.
type FrontProxy struct {
	// CABundle is PEM: the certificates that sign the proxy's client certificate.
	CABundle []byte
	// AllowedNames are the common names that the certificate may have; empty
	// means any, as it does for kube-apiserver.
	AllowedNames []string
	// The names of the headers that carry the user. UsernameHeaders is required.
	UsernameHeaders     []string
	UIDHeaders          []string
	GroupHeaders        []string
	ExtraHeaderPrefixes []string
}

// Member is one cluster and the API groups that are exposed to it.
type Member struct {
	Name       string
	FrontProxy FrontProxy
	Groups     []string
}

// Members tells who may speak. The handler asks at each request, so an answer
// must cost nothing.
type Members interface {
	// Roster gives the present roster, and a channel that is closed when another
	// has taken its place. The roster is nil while it is not known yet: then
	// nobody is served, and told to come again.
	Roster() (*Roster, <-chan struct{})
}

// Roster is an unchanging set of members, ready to be asked. A change of any
// member makes a new one, which also forgets every certificate verified before.
type Roster struct {
	clock   clock.PassiveClock
	members []*member
	// owners gives the member of each authority's public key.
	owners map[string]string

	mu       sync.Mutex
	verified map[fingerprint]verdict
}

// member is a Member whose authority has been read.
type member struct {
	name         string
	proxy        FrontProxy
	roots        *x509.CertPool
	authorities  []*x509.Certificate
	allowedNames []string
	headers      headerNames
	groups       map[string]bool
}

// NewRoster reads the members. Those that cannot be served safely are left out,
// and named with the reason; the others are served.
func NewRoster(members []Member, clk clock.PassiveClock) (*Roster, map[string]error) {
	r := &Roster{clock: clk, owners: map[string]string{}, verified: map[fingerprint]verdict{}}
	refused := map[string]error{}
	for _, m := range members {
		read, err := readMember(m)
		if err != nil {
			refused[m.Name] = err
			continue
		}
		r.members = append(r.members, read)
	}
	for _, pair := range r.claimKeys() {
		refused[pair[0]] = sharedAuthority(pair[0], pair[1])
		refused[pair[1]] = sharedAuthority(pair[1], pair[0])
	}
	r.members = slices.DeleteFunc(r.members, func(m *member) bool { return refused[m.name] != nil })
	return r, refused
}

func sharedAuthority(name, other string) error {
	return fmt.Errorf("serving cluster %s: %w: %s signs its front proxy with the same key, so either could pass for the other; "+
		"give one of them a request-header CA of its own", name, ErrSharedAuthority, other)
}

func readMember(m Member) (*member, error) {
	if m.Name == "" || strings.Contains(m.Name, ":") || slices.Contains(v1alpha1.ReservedClusterNames(), m.Name) {
		return nil, fmt.Errorf("serving cluster %q: %w: its users would get names of Atoll's own; join it under another name", m.Name, ErrReservedName)
	}
	authorities, err := readBundle(m.FrontProxy.CABundle)
	if err != nil {
		return nil, fmt.Errorf("serving cluster %s: %w: %w; see requestheader-client-ca-file in its ConfigMap "+
			"kube-system/extension-apiserver-authentication", m.Name, ErrBadAuthority, err)
	}
	headers, err := readHeaderNames(m.FrontProxy)
	if err != nil {
		return nil, fmt.Errorf("serving cluster %s: %w: %w; see its ConfigMap kube-system/extension-apiserver-authentication",
			m.Name, ErrBadAuthority, err)
	}
	read := &member{
		name:         m.Name,
		proxy:        m.FrontProxy,
		roots:        x509.NewCertPool(),
		authorities:  authorities,
		allowedNames: m.FrontProxy.AllowedNames,
		headers:      headers,
		groups:       map[string]bool{},
	}
	for _, ca := range authorities {
		read.roots.AddCert(ca)
	}
	for _, group := range m.Groups {
		// Groups without a dot are Kubernetes' own, and the member has them itself.
		if !strings.Contains(group, ".") || strings.ContainsAny(group, "/ ") {
			return nil, fmt.Errorf("serving cluster %s: %w: %q; expose groups of custom resources", m.Name, ErrBadGroup, group)
		}
		read.groups[group] = true
	}
	return read, nil
}

// keeps tells whether this roster still lets a member of an earlier one reach a
// group, by the same authority.
func (r *Roster) keeps(m *member, group string) bool {
	return slices.ContainsFunc(r.members, func(now *member) bool {
		return now.name == m.name && now.groups[group] && reflect.DeepEqual(now.proxy, m.proxy)
	})
}

func readBundle(bundle []byte) ([]*x509.Certificate, error) {
	var authorities []*x509.Certificate
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		ca, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("reading a certificate of the CA bundle: %w", err)
		}
		authorities = append(authorities, ca)
	}
	if len(authorities) == 0 {
		return nil, errors.New("the CA bundle has no certificate")
	}
	return authorities, nil
}

// claimKeys notes whose each authority is, and gives the pairs of members that
// trust a common one. The key counts, not the certificate: a renewed
// certificate of one CA is still that CA.
func (r *Roster) claimKeys() (pairs [][2]string) {
	for _, m := range r.members {
		for _, ca := range m.authorities {
			key := string(ca.RawSubjectPublicKeyInfo)
			switch owner, taken := r.owners[key]; {
			case !taken:
				r.owners[key] = m.name
			case owner != m.name:
				pairs = append(pairs, [2]string{owner, m.name})
			}
		}
	}
	return pairs
}

func canonical(names []string) []string {
	var out []string
	for _, name := range names {
		if c := http.CanonicalHeaderKey(strings.TrimSpace(name)); c != "" && !slices.Contains(out, c) {
			out = append(out, c)
		}
	}
	return out
}
