package aggregate

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// issuer is a CA, or a certificate that it signed, with its key.
type issuer struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newCA(t *testing.T, name string) *issuer {
	return (&issuer{t: t}).sign(name, func(c *x509.Certificate) { asCA(c) })
}

func asCA(c *x509.Certificate) {
	c.IsCA, c.BasicConstraintsValid, c.ExtKeyUsage = true, true, nil
	c.KeyUsage = x509.KeyUsageCertSign
}

// sign returns a client certificate that is valid for an hour.
func (ca *issuer) sign(name string, change ...func(*x509.Certificate)) *issuer {
	ca.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		ca.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    start.Add(-time.Hour),
		NotAfter:     start.Add(time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, f := range change {
		f(template)
	}
	parent, signer := ca.cert, ca.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		ca.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		ca.t.Fatal(err)
	}
	return &issuer{ca.t, cert, key}
}

// renew returns another certificate for the key of a CA.
func (ca *issuer) renew() *issuer {
	template := *ca.cert
	template.SerialNumber = big.NewInt(2)
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, ca.key.Public(), ca.key)
	if err != nil {
		ca.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		ca.t.Fatal(err)
	}
	return &issuer{ca.t, cert, ca.key}
}

func (ca *issuer) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw})
}

// proxyOf returns the front proxy configuration of a member with this CA, as kubeadm
// sets it up.
func proxyOf(ca *issuer) FrontProxy {
	return FrontProxy{
		CABundle:            ca.pem(),
		AllowedNames:        []string{"front-proxy-client"},
		UsernameHeaders:     []string{"X-Remote-User"},
		UIDHeaders:          []string{"X-Remote-Uid"},
		GroupHeaders:        []string{"X-Remote-Group"},
		ExtraHeaderPrefixes: []string{"X-Remote-Extra-"},
	}
}

func mustRoster(t *testing.T, clk *clocktesting.FakePassiveClock, members ...Member) *Roster {
	t.Helper()
	r, refused := NewRoster(members, clk)
	if len(refused) > 0 {
		t.Fatalf("refused: %v", refused)
	}
	return r
}

func TestVerify(t *testing.T) {
	// All CAs have the same name, as with kubeadm.
	east, west, stranger := newCA(t, "front-proxy-ca"), newCA(t, "front-proxy-ca"), newCA(t, "front-proxy-ca")
	noCA := east.sign("front-proxy-client")
	between := east.sign("intermediate", asCA)
	clk := clocktesting.NewFakePassiveClock(start)
	anyName := proxyOf(west)
	anyName.AllowedNames = nil
	roster := mustRoster(t, clk, Member{Name: "east", FrontProxy: proxyOf(east)}, Member{Name: "west", FrontProxy: anyName})

	chain := func(certs ...*issuer) (out []*x509.Certificate) {
		for _, c := range certs {
			out = append(out, c.cert)
		}
		return out
	}
	for _, c := range []struct {
		name  string
		chain []*x509.Certificate
		want  string // the member, or a part of the reason
	}{
		{"east's proxy", chain(east.sign("front-proxy-client")), "east"},
		{"east's proxy by an intermediate", chain(between.sign("front-proxy-client"), between), "east"},
		{"the intermediate is missing", chain(between.sign("front-proxy-client")), "not a valid one"},
		{"west allows any name", chain(west.sign("anyone")), "west"},
		{"a name that east does not allow", chain(east.sign("kubelet")), `name "kubelet" is not one that cluster east allows`},
		{"no certificate", nil, "no client certificate"},
		{"a CA that no member has", chain(stranger.sign("front-proxy-client")), "not a valid one"},
		{"a member's CA sent along with a stranger's certificate", chain(stranger.sign("front-proxy-client"), east), "not a valid one"},
		{"self-signed", chain(newCA(t, "front-proxy-client")), "not a valid one"},
		{"a serving certificate", chain(east.sign("front-proxy-client", func(c *x509.Certificate) {
			c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		})), "not a valid one"},
		{"expired", chain(east.sign("front-proxy-client", func(c *x509.Certificate) { c.NotAfter = start.Add(-time.Second) })), "not a valid one"},
		{"not yet valid", chain(east.sign("front-proxy-client", func(c *x509.Certificate) { c.NotBefore = start.Add(time.Second) })), "not a valid one"},
		{"signed by a certificate that is no CA", chain(noCA.sign("front-proxy-client"), noCA), "not a valid one"},
		{"too long a chain", chain(east, east, east, east, east, east), "more than 5"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for range 2 { // the second time from the cache
				m, err := roster.verify(c.chain)
				switch {
				case err == nil && m.name != c.want:
					t.Fatalf("got member %s, want %s", m.name, c.want)
				case err != nil && !strings.Contains(err.Error(), c.want):
					t.Fatalf("refused with %q, want %q", err, c.want)
				}
			}
		})
	}
}

// A cached verdict ends with the certificate.
func TestCachedVerdictExpires(t *testing.T) {
	ca := newCA(t, "front-proxy-ca")
	clk := clocktesting.NewFakePassiveClock(start)
	roster := mustRoster(t, clk, Member{Name: "east", FrontProxy: proxyOf(ca)})
	chain := []*x509.Certificate{ca.sign("front-proxy-client").cert}
	if _, err := roster.verify(chain); err != nil {
		t.Fatal(err)
	}
	clk.SetTime(start.Add(2 * time.Hour))
	if _, err := roster.verify(chain); err == nil {
		t.Fatal("accepted after it expired")
	}
}

// An authority signed by another member's authority issues certificates that are valid
// for both. They must be rejected, rather than assigned to one by chance.
func TestVerifyAmbiguous(t *testing.T) {
	root := newCA(t, "root")
	below := root.sign("below", asCA)
	roster := mustRoster(t, clocktesting.NewFakePassiveClock(start),
		Member{Name: "east", FrontProxy: proxyOf(root)}, Member{Name: "west", FrontProxy: proxyOf(below)})
	for name, leaf := range map[string]*issuer{
		"as it is": below.sign("front-proxy-client"),
		// An attacker with west's key can create this, so that only east is a
		// candidate.
		"naming east's key": below.claiming(root.cert.SubjectKeyId),
	} {
		_, err := roster.verify([]*x509.Certificate{leaf.cert, below.cert})
		if err == nil || !strings.Contains(err.Error(), "could be of cluster") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// claiming returns a client certificate with another authority key identifier.
func (ca *issuer) claiming(keyID []byte) *issuer {
	liar := *ca.cert
	liar.SubjectKeyId = keyID
	return (&issuer{ca.t, &liar, ca.key}).sign("front-proxy-client")
}

// A certificate without an authority key identifier costs a signature check for each
// member: any client could cause thousands of them.
func TestVerifyNeedsKeyIdentifierAmongMany(t *testing.T) {
	var members []Member
	var last *issuer
	for i := range maxCandidates + 1 {
		last = newCA(t, "front-proxy-ca")
		members = append(members, Member{Name: fmt.Sprint("member-", i), FrontProxy: proxyOf(last)})
	}
	roster := mustRoster(t, clocktesting.NewFakePassiveClock(start), members...)
	if m, err := roster.verify([]*x509.Certificate{last.sign("front-proxy-client").cert}); err != nil || m.name != members[maxCandidates].Name {
		t.Errorf("got %v, %v", m, err)
	}
	if _, err := roster.verify([]*x509.Certificate{last.claiming(nil).cert}); err == nil || !strings.Contains(err.Error(), "authority key identifier") {
		t.Errorf("got %v", err)
	}
}

func TestRosterRefusals(t *testing.T) {
	shared, good := newCA(t, "shared"), newCA(t, "good")
	renewed := shared.renew()
	noUser := proxyOf(good)
	noUser.UsernameHeaders = nil
	garbage := proxyOf(good)
	garbage.CABundle = []byte("no certificate")
	roster, refused := NewRoster([]Member{
		{Name: "good", FrontProxy: proxyOf(good), Groups: []string{"shop.example.com"}},
		{Name: "one", FrontProxy: proxyOf(shared)},
		{Name: "two", FrontProxy: proxyOf(renewed)},
		{Name: "system", FrontProxy: proxyOf(newCA(t, "x"))},
		{Name: "atoll", FrontProxy: proxyOf(newCA(t, "x"))},
		{Name: "no-user", FrontProxy: noUser},
		{Name: "garbage", FrontProxy: garbage},
		{Name: "core", FrontProxy: proxyOf(newCA(t, "x")), Groups: []string{"apps"}},
		{Name: "empty", FrontProxy: proxyOf(newCA(t, "x")), Groups: []string{""}},
	}, clocktesting.NewFakePassiveClock(start))

	for name, want := range map[string]error{
		"one": ErrSharedAuthority, "two": ErrSharedAuthority, "system": ErrReservedName, "atoll": ErrReservedName,
		"no-user": ErrBadAuthority, "garbage": ErrBadAuthority, "core": ErrBadGroup, "empty": ErrBadGroup,
	} {
		if !errors.Is(refused[name], want) {
			t.Errorf("%s: refused with %v, want %v", name, refused[name], want)
		}
	}
	if len(refused) != 8 || len(roster.members) != 1 || roster.members[0].name != "good" {
		t.Errorf("refused %d, kept %d", len(refused), len(roster.members))
	}
	if _, err := roster.verify([]*x509.Certificate{shared.sign("front-proxy-client").cert}); err == nil {
		t.Error("an authority shared by two members was accepted")
	}
}
