package packages

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
	openpgp "github.com/ProtonMail/go-crypto/openpgp/v2"
)

func is(err, kind error) bool { return errors.Is(err, kind) }

// signer is the owner of a signing key.
type signer struct {
	entity *openpgp.Entity
	config *packet.Config
}

// newSigner creates a key with a creation time and a validity; 0 means unlimited.
func newSigner(t *testing.T, at time.Time, lifetime time.Duration) signer {
	config := &packet.Config{Algorithm: packet.PubKeyAlgoEdDSA, Time: func() time.Time { return at }, KeyLifetimeSecs: uint32(lifetime.Seconds())}
	entity, err := openpgp.NewEntity("Acme", "", "acme@example.com", config)
	if err != nil {
		t.Fatal(err)
	}
	return signer{entity, config}
}

// expire changes the key's expiration.
func (s signer) expire(t *testing.T, until time.Time) {
	lifetime := uint32(until.Sub(s.entity.PrimaryKey.CreationTime).Seconds())
	for name, identity := range s.entity.Identities {
		for _, own := range identity.SelfCertifications {
			own.Packet.KeyLifetimeSecs = &lifetime
			if err := own.Packet.SignUserId(name, s.entity.PrimaryKey, s.entity.PrivateKey, s.config); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func (s signer) armor(t *testing.T) string {
	var out bytes.Buffer
	w, err := armor.Encode(&out, openpgp.PublicKeyType, nil)
	if err == nil {
		err = errors.Join(s.entity.Serialize(w), w.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func (s signer) sign(t *testing.T, text string) []byte {
	var out bytes.Buffer
	if err := openpgp.DetachSign(&out, []*openpgp.Entity{s.entity}, strings.NewReader(text), s.config); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// registry is a registry with the package demo, which tests modify.
type registry struct {
	serve                *serve
	server               *httptest.Server
	keys                 []string
	sums                 string
	signature            []byte
	shasum, filename, os string
	protocols            string
}

const registered123 = "/v1/providers/acme/demo/"

func startRegistry(t *testing.T, archive []byte, by *signer) *registry {
	s, server := startServer(t)
	sum := hex.EncodeToString(zh(archive).sum())
	r := &registry{serve: s, server: server, shasum: sum, filename: demo.archiveName(), os: "linux", protocols: `["5.0", "6.1"]`}
	r.sums = strings.Repeat("0", 64) + "  other.zip\n" + sum + "  " + r.filename + "\n"
	if by != nil {
		r.keys, r.signature = []string{by.armor(t)}, by.sign(t, r.sums)
	}
	s.set("/.well-known/terraform.json", object(`{"modules.v1": "/v1/modules/", "providers.v1": "/v1/providers/"}`))
	s.set(registered123+"versions", object(`{"versions": [{"version": "1.10.0", "protocols": ["6.0"]}, {"version": "1.2.3"}, {"version": "0.1.0", "protocols": ["4.0"]}]}`))
	s.set("/demo.zip", text(archive))
	return r
}

// serveAll answers according to the registry's current state.
func (r *registry) serveAll() {
	var keys []string
	for _, key := range r.keys {
		keys = append(keys, fmt.Sprintf(`{"key_id": "X", "ascii_armor": %q}`, key))
	}
	r.serve.set(registered123+"1.2.3/download/linux/amd64", object(`{"protocols": %s, "os": %q, "arch": "amd64", "filename": %q, "download_url": "/demo.zip",
		"shasum": %q, "shasums_url": "/sums", "shasums_signature_url": "/sums.sig", "signing_keys": {"gpg_public_keys": [%s]}}`,
		r.protocols, r.os, r.filename, r.shasum, strings.Join(keys, ",")))
	r.serve.set("/sums", text([]byte(r.sums)))
	r.serve.set("/sums.sig", text(r.signature))
}

func (r *registry) install(t *testing.T, digests ...Digest) (Installed, error) {
	c := client(t, r.server)
	ask := request(NewRegistry(c), digests...)
	ask.Package.Source.Host = strings.TrimPrefix(r.server.URL, "https://")
	return New(openStore(t, storeDir(t)), c, Limits{}).Install(t.Context(), ask)
}

func TestRegistry(t *testing.T) {
	archive := pack(t, files()...)
	by := newSigner(t, time.Now().Add(-time.Hour), 0)
	other := newSigner(t, time.Now().Add(-time.Hour), 0)
	r := startRegistry(t, archive, &by)
	r.keys = append([]string{other.armor(t)}, r.keys...)
	r.serveAll()
	got, err := r.install(t, zh(archive))
	want := Signature{State: SignatureVerified, Key: by.entity.PrimaryKey.KeyIdString()}
	if err != nil || got.Signature != want || got.From != "registry" {
		t.Errorf("%+v, %v", got, err)
	}
	source := demo.Source
	source.Host = strings.TrimPrefix(r.server.URL, "https://")
	versions, err := NewRegistry(client(t, r.server)).Versions(t.Context(), source)
	if want := []Version{"1.2.3", "1.10.0"}; err != nil || !slices.Equal(versions, want) {
		t.Errorf("%v, %v", versions, err)
	}
	if _, err := r.install(t, zh([]byte("another"))); !is(err, ErrRefused) || !strings.Contains(err.Error(), string(zh(archive))) {
		t.Errorf("signed, but not required: %v", err)
	}
}

// TestRegistryWithoutKey: the digest alone decides, and the result shows that.
func TestRegistryWithoutKey(t *testing.T) {
	archive := pack(t, files()...)
	r := startRegistry(t, archive, nil)
	r.serveAll()
	got, err := r.install(t, zh(archive))
	if err != nil || got.Signature != (Signature{State: SignatureNoKey}) {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestExpiredKey: a signature that was made before its key expired is valid.
func TestExpiredKey(t *testing.T) {
	archive := pack(t, files()...)
	by := newSigner(t, time.Now().Add(-48*time.Hour), 24*time.Hour)
	r := startRegistry(t, archive, &by)
	r.serveAll()
	if got, err := r.install(t, zh(archive)); err != nil || got.Signature.State != SignatureVerified {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestRegistryErrors: every possible error of a registry. All packages have the required digest.
func TestRegistryErrors(t *testing.T) {
	archive := pack(t, files()...)
	by := newSigner(t, time.Now().Add(-time.Hour), 0)
	other := newSigner(t, time.Now().Add(-time.Hour), 0)
	short := by
	short.config = &packet.Config{Time: by.config.Time, SigLifetimeSecs: 60}
	tests := []struct {
		name   string
		change func(*registry)
		kind   error // nil is none of ours
		says   string
	}{
		{"no registry", func(r *registry) { r.serve.set("/.well-known/terraform.json", status(404)) }, ErrNotFound, "terraform.json"},
		{"no providers", func(r *registry) { r.serve.set("/.well-known/terraform.json", object(`{"modules.v1": "/"}`)) }, ErrNotFound, "is not a provider registry"},
		{"odd discovery", func(r *registry) { r.serve.set("/.well-known/terraform.json", object(`{"providers.v1": {"a": 1}}`)) }, ErrNotFound, "is not a provider registry"},
		{"registry without TLS", func(r *registry) {
			r.serve.set("/.well-known/terraform.json", object(`{"providers.v1": "http://tf.example.com/?token=hunter2"}`))
		}, ErrInvalid, "tf.example.com/?…"},
		{"no such package", func(r *registry) { r.serve.set(registered123+"1.2.3/download/linux/amd64", status(404)) }, ErrNotFound, "linux/amd64"},
		{"not allowed", func(r *registry) { r.serve.set(registered123+"1.2.3/download/linux/amd64", status(401)) }, nil, "credentials"},
		{"broken", func(r *registry) { r.serve.set(registered123+"1.2.3/download/linux/amd64", status(500)) }, nil, "500"},
		{"another platform", func(r *registry) { r.os = "plan9" }, ErrRefused, "plan9_amd64"},
		{"old protocol", func(r *registry) { r.protocols = `["4.0"]` }, ErrRefused, "Atoll supports 5 and 6"},
		{"no checksum", func(r *registry) { r.shasum = "" }, ErrRefused, "not a SHA-256 checksum"},
		{"archive of another checksum", func(r *registry) { r.keys, r.shasum = nil, strings.Repeat("0", 64) }, ErrRefused, "claimed by its origin"},
		{"another archive", func(r *registry) { r.serve.set("/demo.zip", text([]byte("another"))) }, ErrRefused, string(zh([]byte("another")))},
		{"key of another signer", func(r *registry) { r.keys = []string{other.armor(t)} }, ErrRefused, "none of the registry's keys"},
		{"no key at all", func(r *registry) { r.keys = []string{"nonsense"} }, ErrRefused, "key 1"},
		{"signed by another signer", func(r *registry) { r.signature = other.sign(t, r.sums) }, ErrRefused, "none of the registry's keys"},
		{"signature of something else", func(r *registry) { r.signature = by.sign(t, "something else") }, ErrRefused, "signature"},
		{"no signature", func(r *registry) { r.signature = nil }, ErrRefused, "signature"},
		{"nonsense instead of a signature", func(r *registry) { r.signature = []byte("nonsense") }, ErrRefused, "signature"},
		{"signed after the key expired", func(r *registry) {
			late := newSigner(t, time.Now().Add(-48*time.Hour), 0)
			late.config.Time = time.Now
			r.signature = late.sign(t, r.sums)
			late.expire(t, time.Now().Add(-24*time.Hour))
			r.keys = []string{late.armor(t)}
		}, ErrRefused, "expired"},
		{"expired signature", func(r *registry) { r.signature = short.sign(t, r.sums) }, ErrRefused, "expired"},
		{"revoked key", func(r *registry) {
			revoked := newSigner(t, time.Now().Add(-time.Hour), 0)
			r.signature = revoked.sign(t, r.sums)
			if err := revoked.entity.Revoke(packet.KeyCompromised, "stolen", revoked.config); err != nil {
				t.Fatal(err)
			}
			r.keys = []string{revoked.armor(t)}
		}, ErrRefused, "revoked"},
		{"checksums changed", func(r *registry) { r.sums = strings.Replace(r.sums, "000", "001", 1) }, ErrRefused, "signature"},
		{"not in the signed list", func(r *registry) { r.filename = "unlisted.zip" }, ErrRefused, "the signed list"},
		{"another checksum in the signed list", func(r *registry) { r.filename = "other.zip" }, ErrRefused, "the signed list"},
		{"twice in the signed list", func(r *registry) {
			r.sums = strings.Repeat("1", 64) + "  " + r.filename + "\n" + r.sums
			r.signature = by.sign(t, r.sums)
		}, ErrRefused, "the signed list"},
		{"no file name", func(r *registry) { r.filename = "" }, ErrRefused, "the signed list"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := startRegistry(t, archive, &by)
			tt.change(r)
			kept := r.serve.paths[registered123+"1.2.3/download/linux/amd64"]
			r.serveAll()
			if kept != nil {
				r.serve.set(registered123+"1.2.3/download/linux/amd64", kept)
			}
			got, err := r.install(t, zh(archive))
			if err == nil || tt.kind != nil && !isKind(err, tt.kind) || !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%+v, %v", got, err)
			}
			if tt.kind == nil && (is(err, ErrRefused) || is(err, ErrNotFound)) {
				t.Errorf("%v is of a wrong kind", err)
			}
		})
	}
	t.Run("no list", func(t *testing.T) {
		r := startRegistry(t, archive, &by)
		r.serveAll()
		r.serve.set("/sums", status(404))
		if _, err := r.install(t, zh(archive)); err == nil || !strings.Contains(err.Error(), "/sums") {
			t.Error(err)
		}
	})
}
