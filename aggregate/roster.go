// Package aggregate serves a workspace to the kube-apiservers of its member clusters.
// Each member serves shared API groups by aggregation: its kube-apiserver proxies them
// here. The handler determines which member and which user sent a request. It lets the
// member reach only the groups that are exposed to it, and keeps the member's own
// controllers from destroying shared objects. It passes the request on, in process, to
// the workspace's ordinary handler chain.
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

// Reasons why a member cannot be served. NewRoster wraps them with the next step.
var (
	ErrReservedName    = errors.New("reserved cluster name")
	ErrBadAuthority    = errors.New("unusable front proxy authority")
	ErrSharedAuthority = errors.New("front proxy authority shared with another cluster")
	ErrBadGroup        = errors.New("API group that cannot be exposed")
)

// FrontProxy is the configuration of a member's front proxy, as its kube-apiserver
// publishes it in ConfigMap kube-system/extension-apiserver-authentication.
type FrontProxy struct {
	// CABundle has the certificates that sign the proxy's client certificate, in PEM.
	CABundle []byte
	// AllowedNames are the permitted common names of the certificate; empty permits
	// any, as for kube-apiserver.
	AllowedNames []string
	// Names of the headers that carry the user. UsernameHeaders is required.
	UsernameHeaders     []string
	UIDHeaders          []string
	GroupHeaders        []string
	ExtraHeaderPrefixes []string
}

// Member is a cluster and the API groups that are exposed to it.
type Member struct {
	Name       string
	FrontProxy FrontProxy
	Groups     []string
}

// Members provides the current roster. The handler calls it for each request, so it
// must be cheap.
type Members interface {
	// Roster returns the current roster, and a channel that is closed when another
	// roster replaces it. The roster is nil until it is known: until then every request
	// is refused with 503 and a Retry-After.
	Roster() (*Roster, <-chan struct{})
}

// Roster is an immutable set of members. A change of any member makes a new one, which
// starts without cached verdicts.
type Roster struct {
	clock   clock.PassiveClock
	members []*member
	// owners maps each authority's public key to its member.
	owners map[string]string

	mu       sync.Mutex
	verified map[fingerprint]verdict
}

// member is a Member with parsed certificates.
type member struct {
	name         string
	proxy        FrontProxy
	roots        *x509.CertPool
	authorities  []*x509.Certificate
	allowedNames []string
	headers      headerNames
	groups       map[string]bool
}

// NewRoster parses the members. It leaves out those that cannot be served safely, and
// returns the reason for each; the others are served.
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
	for _, pair := range r.indexKeys() {
		refused[pair[0]] = sharedAuthority(pair[0], pair[1])
		refused[pair[1]] = sharedAuthority(pair[1], pair[0])
	}
	r.members = slices.DeleteFunc(r.members, func(m *member) bool { return refused[m.name] != nil })
	return r, refused
}

func sharedAuthority(name, other string) error {
	return fmt.Errorf("cannot serve cluster %s: %w: %s signs its front proxy with the same key, so either could pass for the other; "+
		"give one of them a request-header CA of its own", name, ErrSharedAuthority, other)
}

func readMember(m Member) (*member, error) {
	if m.Name == "" || strings.Contains(m.Name, ":") || slices.Contains(v1alpha1.ReservedClusterNames(), m.Name) {
		return nil, fmt.Errorf("cannot serve cluster %q: %w: its users would get names that Atoll reserves; join it under another name", m.Name, ErrReservedName)
	}
	authorities, err := readBundle(m.FrontProxy.CABundle)
	if err != nil {
		return nil, fmt.Errorf("cannot serve cluster %s: %w: %w; see requestheader-client-ca-file in its ConfigMap "+
			"kube-system/extension-apiserver-authentication", m.Name, ErrBadAuthority, err)
	}
	headers, err := readHeaderNames(m.FrontProxy)
	if err != nil {
		return nil, fmt.Errorf("cannot serve cluster %s: %w: %w; see its ConfigMap kube-system/extension-apiserver-authentication",
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
		// Groups without a dot are built into Kubernetes; the member serves them
		// itself.
		if !strings.Contains(group, ".") || strings.ContainsAny(group, "/ ") {
			return nil, fmt.Errorf("cannot serve cluster %s: %w: %q; expose groups of custom resources", m.Name, ErrBadGroup, group)
		}
		read.groups[group] = true
	}
	return read, nil
}

// stillServes reports whether this roster still lets a member of an earlier roster
// reach a group, by the same authority.
func (r *Roster) stillServes(m *member, group string) bool {
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
			return nil, fmt.Errorf("parse a certificate of the CA bundle: %w", err)
		}
		authorities = append(authorities, ca)
	}
	if len(authorities) == 0 {
		return nil, errors.New("the CA bundle contains no certificate")
	}
	return authorities, nil
}

// indexKeys records the owner of each authority's public key. It returns the pairs of
// members that trust a common key. It compares keys, not certificates: a renewed
// certificate of a CA has the same key.
func (r *Roster) indexKeys() (pairs [][2]string) {
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
