package server

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// Rotation replaces the certificate authority or the key of service accounts. What the
// former ones signed stays valid until they are forgotten: ca.crt and service-account.key
// begin with the current one and end with the former ones. Clients that only know the
// former authority accept the new one's certificates too, because these are followed by
// a certificate of the new authority that the former one has signed.

// keyFiles are the contents of files in DIR/pki, by their names.
type keyFiles map[string][]byte

// formerHashes is a member of keyFiles in the datastore: the SHA-256 hashes of replaced
// files, as JSON. A server replaces only these in its directory.
const formerHashes = "former-hashes"

// Key is a certificate authority, a key of service accounts or a key of encryption at rest.
type Key struct {
	Name string // authority, service-accounts or encryption
	// Former is true if it signs or encrypts nothing more and is still accepted.
	Former bool
	// Fingerprint is of the public key. For a key of encryption, it is its name in stored values.
	Fingerprint string
	// Since is when it was created, and Until when it expires. Service accounts have neither,
	// and keys of encryption do not expire.
	Since, Until time.Time
	// Kept is why a former key of encryption is not forgotten, and Needs are the values that need it. Both are set by a change that forgets keys.
	Kept  string
	Needs []KeyNeed
}

// Names of keys.
const (
	KeyAuthority       = "authority"
	KeyServiceAccounts = "service-accounts"
	KeyEncryption      = "encryption"
)

// list returns all keys, current ones first.
func (k keyFiles) list() ([]Key, error) {
	authorities, err := k.authorities()
	if err != nil {
		return nil, err
	}
	var all []Key
	for i, c := range authorities {
		all = append(all, Key{Name: KeyAuthority, Former: i > 0, Fingerprint: fingerprint(c.PublicKey), Since: c.NotBefore, Until: c.NotAfter})
	}
	accounts, err := keyutil.ParsePublicKeysPEM(k[serviceAccountKey])
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", serviceAccountKey, err)
	}
	for i, key := range accounts {
		all = append(all, Key{Name: KeyServiceAccounts, Former: i > 0, Fingerprint: fingerprint(key)})
	}
	encryption, err := parseEncryptionKeys(k[encryptionKeys])
	if err != nil {
		return nil, err
	}
	for i, key := range encryption {
		all = append(all, Key{Name: KeyEncryption, Former: i > 0, Fingerprint: key.name, Since: key.created})
	}
	return all, nil
}

func fingerprint(key any) string {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return "unknown"
	}
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:8])
}

func (k keyFiles) authorities() ([]*x509.Certificate, error) {
	all, err := cert.ParseCertsPEM(k[caCert])
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", caCert, err)
	}
	return all, nil
}

// rotateAuthority returns the files with a new authority, which the current one vouches
// for.
func (k keyFiles) rotateAuthority(now time.Time) (keyFiles, error) {
	authorities, err := k.authorities()
	if err != nil {
		return nil, err
	}
	current := authorities[0]
	signer, err := keyutil.ParsePrivateKeyPEM(k[caKey])
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", caKey, err)
	}
	if key, ok := signer.(*ecdsa.PrivateKey); !ok || !key.PublicKey.Equal(current.PublicKey) {
		return nil, fmt.Errorf("%s and %s do not match: restore both from the same backup", caCert, caKey)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate the key of the certificate authority: %w", err)
	}
	root, err := authorityTemplate(now)
	if err != nil {
		return nil, err
	}
	if root.Subject.CommonName == current.Subject.CommonName {
		return nil, errors.New("the authority was created in this second: try again")
	}
	own, err := x509.CreateCertificate(rand.Reader, root, root, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate authority: %w", err)
	}
	vouched := *root
	if vouched.SerialNumber, err = serialNumber(); err != nil {
		return nil, err
	}
	vouched.NotAfter = earlier(root.NotAfter, current.NotAfter)
	cross, err := x509.CreateCertificate(rand.Reader, &vouched, current, key.Public(), signer)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate authority by the former one: %w", err)
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", caKey, err)
	}
	next := maps.Clone(k)
	next[caKey] = keyPEM
	next[caCert] = append(pemCert(own), k[caCert]...)
	next[crossCert] = append(pemCert(cross), k[crossCert]...)
	return next, nil
}

// rotateServiceAccounts returns the files with a new key, which signs tokens from now on.
func (k keyFiles) rotateServiceAccounts() (keyFiles, error) {
	former, err := keyutil.ParsePublicKeysPEM(k[serviceAccountKey])
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", serviceAccountKey, err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate %s: %w", serviceAccountKey, err)
	}
	content, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", serviceAccountKey, err)
	}
	for _, public := range former {
		der, err := x509.MarshalPKIXPublicKey(public)
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", serviceAccountKey, err)
		}
		content = append(content, pem.EncodeToMemory(&pem.Block{Type: keyutil.PublicKeyBlockType, Bytes: der})...)
	}
	next := maps.Clone(k)
	next[serviceAccountKey] = content
	return next, nil
}

// forget returns the files without the former keys.
func (k keyFiles) forget() (keyFiles, error) {
	authorities, err := k.authorities()
	if err != nil {
		return nil, err
	}
	key, err := keyutil.ParsePrivateKeyPEM(k[serviceAccountKey])
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", serviceAccountKey, err)
	}
	next := maps.Clone(k)
	next[caCert] = encodeCert(authorities[0])
	delete(next, crossCert)
	if next[serviceAccountKey], err = keyutil.MarshalPrivateKeyToPEM(key); err != nil {
		return nil, fmt.Errorf("encode %s: %w", serviceAccountKey, err)
	}
	return next, nil
}

func pemCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: der})
}

// replaced returns the files with the hashes of the files before them.
func (k keyFiles) replaced(before keyFiles) (keyFiles, error) {
	hashes, err := before.formerHashes()
	if err != nil {
		return nil, err
	}
	for _, name := range rotatedFiles {
		if old, ok := before[name]; ok && !bytes.Equal(old, k[name]) {
			hashes = append(hashes, hashOf(old))
		}
	}
	next := maps.Clone(k)
	if next[formerHashes], err = json.Marshal(hashes); err != nil {
		return nil, err
	}
	return next, nil
}

func (k keyFiles) formerHashes() (hashes []string, err error) {
	if content := k[formerHashes]; content != nil {
		if err := json.Unmarshal(content, &hashes); err != nil {
			return nil, fmt.Errorf("read the hashes of former keys: %w", err)
		}
	}
	return hashes, nil
}

func hashOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// KeyPlace is where keys are: in the data directory of a server on SQLite, or in the
// datastore that several servers share.
type KeyPlace struct {
	DataDir string
	// Datastore is the URL of a shared datastore, and TokenFile has its token.
	Datastore, TokenFile string
}

// KeyChange is a change of keys.
type KeyChange struct {
	Authority, ServiceAccounts, Encryption bool
	// Forget ends the validity of all former keys. Those of encryption at rest are kept while
	// something is encrypted with them.
	Forget bool
	// NewTokenFile has the token that replaces the present one.
	NewTokenFile string
}

// Keys returns the keys of a place.
func Keys(ctx context.Context, place KeyPlace) ([]Key, error) {
	return ChangeKeys(ctx, place, KeyChange{}, time.Time{}, true)
}

// ChangeKeys changes the keys of a place, and returns the keys after the change. A dry
// run changes nothing. Servers use the new keys from their next start.
func ChangeKeys(ctx context.Context, place KeyPlace, change KeyChange, now time.Time, dryRun bool) ([]Key, error) {
	if place.Datastore == "" {
		if change.NewTokenFile != "" {
			return nil, errors.New("a server on SQLite has no token: name the datastore that the servers share with --datastore")
		}
		return change.inDirectory(ctx, place.DataDir, now, dryRun)
	}
	if strings.HasPrefix(place.Datastore, "sqlite:") {
		return nil, errors.New("the keys of a server on SQLite are in its data directory: use --data-dir")
	}
	opening := OpenDatastore
	if dryRun {
		opening = OpenDatastoreReadOnly
	}
	store, err := opening(ctx, place.Datastore)
	if err != nil {
		return nil, err
	}
	defer store.Close()
	sealed, err := openSealed(ctx, store, place.TokenFile)
	if err != nil {
		return nil, err
	}
	var use keyUse
	if change.Forget {
		if use, err = encryptionUse(ctx, store); err != nil {
			return nil, err
		}
	}
	next, err := change.apply(sealed.files, use, now)
	if err != nil {
		return nil, err
	}
	if change.NewTokenFile != "" {
		if sealed.token, err = tokenIn(change.NewTokenFile); err != nil {
			return nil, err
		}
	}
	if !dryRun {
		if err := sealed.put(ctx, next); err != nil {
			return nil, err
		}
	}
	keys, err := next.list()
	if err != nil || !change.Forget {
		return keys, err
	}
	return use.kept(ctx, keys, store, now)
}

func (c KeyChange) apply(files keyFiles, use keyUse, now time.Time) (next keyFiles, err error) {
	next = files
	if c.Forget {
		if next, err = next.forget(); err != nil {
			return nil, err
		}
		if next, err = next.forgetEncryption(use, now); err != nil {
			return nil, err
		}
	}
	if c.Encryption {
		if next, err = next.rotateEncryption(now); err != nil {
			return nil, err
		}
	}
	if c.Authority {
		if next, err = next.rotateAuthority(now); err != nil {
			return nil, err
		}
	}
	if c.ServiceAccounts {
		if next, err = next.rotateServiceAccounts(); err != nil {
			return nil, err
		}
	}
	return next, nil
}
