package server

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// Files of DIR/pki.
const (
	caCert            = "ca.crt"
	caKey             = "ca.key"
	signingCert       = "ca-signing.crt" // the current authority alone; ca.crt may have former ones, too
	crossCert         = "ca-cross.crt"   // after a rotation: the authority, signed by the former ones
	servingCert       = "serving.crt"
	servingKey        = "serving.key"
	adminCert         = "admin.crt"
	adminKey          = "admin.key"
	serviceAccountKey = "service-account.key"
)

const (
	caValidity   = 10 * 365 * 24 * time.Hour
	leafValidity = 365 * 24 * time.Hour
	// renewBefore leaves time to notice a failing renewal.
	renewBefore  = leafValidity / 3
	freshenEvery = 12 * time.Hour
	// backdate tolerates clients whose clock is a little behind.
	backdate = 5 * time.Minute
)

// pki is the server's own certificate authority and the certificates it has signed. One
// authority signs servers and clients: extended key usages distinguish them.
type pki struct {
	dir   string
	names []string // of the serving certificate, including IPs
	ca    *x509.Certificate
	key   *ecdsa.PrivateKey
	// cross follows each certificate, for those who know only former authorities.
	cross []byte

	serving atomic.Pointer[tls.Certificate]
}

// openPKI reads the directory, creates missing files and renews certificates that are
// due.
func openPKI(dir string, names []string, now time.Time) (*pki, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create directory %s: %w", dir, err)
	}
	p := &pki{dir: dir, names: names}
	if err := p.openCA(now); err != nil {
		return nil, err
	}
	if have, err := os.ReadFile(p.file(signingCert)); err != nil || !bytes.Equal(have, encodeCert(p.ca)) {
		if err := writeFile(p.file(signingCert), encodeCert(p.ca)); err != nil {
			return nil, err
		}
	}
	if _, err := p.renewDue(now); err != nil {
		return nil, err
	}
	if _, err := p.readOrCreateKey(serviceAccountKey); err != nil {
		return nil, err
	}
	if err := readOrCreateEncryptionKeys(p.file(encryptionKeys), now); err != nil {
		return nil, err
	}
	return p, nil
}

func (p *pki) file(name string) string { return filepath.Join(p.dir, name) }

// openCA reads the authority, or creates it on the first start. If only one of its two
// files exists, it returns an error: with a new authority, every kubeconfig handed out
// would stop working.
func (p *pki) openCA(now time.Time) error {
	certs, certErr := cert.CertsFromFile(p.file(caCert))
	key, keyErr := p.readKey(caKey)
	switch {
	case certErr == nil && keyErr == nil:
		p.ca, p.key = certs[0], key
		if !p.key.PublicKey.Equal(p.ca.PublicKey) {
			return fmt.Errorf("%s and %s do not match: restore both from the same backup", p.file(caCert), p.file(caKey))
		}
		if now.After(p.ca.NotAfter) {
			return fmt.Errorf("%s expired on %s: remove the directory %s to create new certificates at the next start, then distribute new kubeconfigs",
				p.file(caCert), p.ca.NotAfter.Format(time.DateOnly), p.dir)
		}
		if p.cross, certErr = os.ReadFile(p.file(crossCert)); certErr != nil && !errors.Is(certErr, fs.ErrNotExist) {
			return fmt.Errorf("read %s: %w", p.file(crossCert), certErr)
		}
		return nil
	case errors.Is(certErr, fs.ErrNotExist) && errors.Is(keyErr, fs.ErrNotExist):
		return p.createCA(now)
	default:
		return fmt.Errorf("read the certificate authority in %s: %w: restore %s and %s from a backup, or remove the directory to create new certificates",
			p.dir, errors.Join(certErr, keyErr), caCert, caKey)
	}
}

func (p *pki) createCA(now time.Time) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("generate the key of the certificate authority: %w", err)
	}
	template, err := authorityTemplate(now)
	if err != nil {
		return err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return fmt.Errorf("sign the certificate authority: %w", err)
	}
	if p.ca, err = x509.ParseCertificate(der); err != nil {
		return fmt.Errorf("parse the new certificate authority: %w", err)
	}
	p.key = key
	// Write the key first: a certificate without its key would look like a lost file at
	// the next start.
	if err := p.writeKey(caKey, key); err != nil {
		return err
	}
	return writeFile(p.file(caCert), encodeCert(p.ca))
}

// authorityTemplate describes a new authority.
func authorityTemplate(now time.Time) (*x509.Certificate, error) {
	serial, err := serialNumber()
	if err != nil {
		return nil, err
	}
	return &x509.Certificate{
		SerialNumber: serial,
		// The date distinguishes the authorities of two data directories.
		Subject:               pkix.Name{CommonName: fmt.Sprintf("atoll-ca@%d", now.Unix())},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(caValidity),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}, nil
}

// renewDue signs the leaf certificates that are missing, about to expire, or do not
// have the expected contents. It reports whether it signed any.
func (p *pki) renewDue(now time.Time) (bool, error) {
	names, ips := split(p.names)
	serving := x509.Certificate{
		Subject:     pkix.Name{CommonName: "atoll"},
		DNSNames:    names,
		IPAddresses: ips,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	admin := x509.Certificate{
		Subject:     pkix.Name{CommonName: "atoll-admin", Organization: []string{"system:masters"}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	servingNew, err := p.ensureLeaf(servingCert, servingKey, serving, now)
	if err != nil {
		return false, err
	}
	adminNew, err := p.ensureLeaf(adminCert, adminKey, admin, now)
	if err != nil {
		return false, err
	}
	pair, err := tls.LoadX509KeyPair(p.file(servingCert), p.file(servingKey))
	if err != nil {
		return false, fmt.Errorf("read %s: %w", servingCert, err)
	}
	p.serving.Store(&pair)
	return servingNew || adminNew, nil
}

func (p *pki) ensureLeaf(certName, keyName string, want x509.Certificate, now time.Time) (bool, error) {
	key, err := p.readOrCreateKey(keyName)
	if err != nil {
		return false, err
	}
	if content, err := os.ReadFile(p.file(certName)); err == nil {
		if certs, err := cert.ParseCertsPEM(content); err == nil && p.upToDate(certs[0], want, key, now) &&
			bytes.Equal(content, p.withCross(certs[0])) {
			return false, nil
		}
	}
	serial, err := serialNumber()
	if err != nil {
		return false, err
	}
	want.SerialNumber = serial
	want.NotBefore = now.Add(-backdate)
	want.NotAfter = earlier(now.Add(leafValidity), p.ca.NotAfter)
	want.KeyUsage = x509.KeyUsageDigitalSignature
	want.BasicConstraintsValid = true
	der, err := x509.CreateCertificate(rand.Reader, &want, p.ca, key.Public(), p.key)
	if err != nil {
		return false, fmt.Errorf("sign %s: %w", certName, err)
	}
	signed, err := x509.ParseCertificate(der)
	if err != nil {
		return false, fmt.Errorf("parse the new %s: %w", certName, err)
	}
	return true, writeFile(p.file(certName), p.withCross(signed))
}

// withCross returns a certificate and what vouches for its authority.
func (p *pki) withCross(c *x509.Certificate) []byte { return append(encodeCert(c), p.cross...) }

// upToDate reports whether a certificate may stay as it is.
func (p *pki) upToDate(have *x509.Certificate, want x509.Certificate, key *ecdsa.PrivateKey, now time.Time) bool {
	sameIP := func(a, b net.IP) bool { return a.Equal(b) }
	return have.CheckSignatureFrom(p.ca) == nil &&
		key.PublicKey.Equal(have.PublicKey) &&
		!now.Before(have.NotBefore) &&
		(now.Before(have.NotAfter.Add(-renewBefore)) || have.NotAfter.Equal(p.ca.NotAfter)) &&
		have.Subject.String() == want.Subject.String() &&
		slices.Equal(have.DNSNames, want.DNSNames) &&
		slices.EqualFunc(have.IPAddresses, want.IPAddresses, sameIP)
}

// renewLoop renews certificates while the server runs. New connections use them: the
// API server reloads its files when they change.
func (p *pki) renewLoop(ctx context.Context, clk clock.WithTicker, renewed func() error) error {
	ticker := clk.NewTicker(freshenEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
		signed, err := p.renewDue(clk.Now())
		if err == nil && signed {
			err = renewed()
		}
		if err != nil {
			// There are months left to fix this.
			klog.ErrorS(err, "certificate renewal failed", "dir", p.dir)
		}
	}
}

func (p *pki) readOrCreateKey(name string) (*ecdsa.PrivateKey, error) {
	key, err := p.readKey(name)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, fmt.Errorf("generate %s: %w", name, err)
	}
	return key, p.writeKey(name, key)
}

func (p *pki) readKey(name string) (*ecdsa.PrivateKey, error) {
	key, err := keyutil.PrivateKeyFromFile(p.file(name))
	if err != nil {
		return nil, err
	}
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s is not an ECDSA key: restore the original from a backup", p.file(name))
	}
	return ec, nil
}

func (p *pki) writeKey(name string, key *ecdsa.PrivateKey) error {
	pem, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return fmt.Errorf("encode %s: %w", name, err)
	}
	return writeFile(p.file(name), pem)
}
