// Package keys generates the keys and certificates of an API server on one machine: a CA, a serving
// certificate, an administrator's certificate and a key that signs service-account tokens. It also
// generates the front-proxy CA and certificate with which the API server authenticates to the
// servers that it aggregates.
package keys

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// validity of all certificates. No playground lives this long.
const validity = 10 * 365 * 24 * time.Hour

// Keys has the paths of the files.
type Keys struct {
	CACert, CAKey         string
	ServerCert, ServerKey string
	AdminCert, AdminKey   string
	// ServiceAccountKey signs tokens. The file contains the public key too.
	ServiceAccountKey string
	// FrontProxyCACert is a separate CA. Servers that trust it accept the user that a request names in
	// its headers, so it must sign nothing but FrontProxyCert. With that certificate the API server
	// connects to the servers that it aggregates.
	FrontProxyCACert, FrontProxyCAKey string
	FrontProxyCert, FrontProxyKey     string
}

// FrontProxyName is the common name of FrontProxyCert.
const FrontProxyName = "front-proxy-client"

// LoadOrMake loads the keys in dir and generates missing ones. The serving certificate that it
// generates is also valid for the addresses.
func LoadOrMake(dir, cluster string, addresses ...net.IP) (*Keys, error) {
	err := makeDir(dir, func(dir string) error { return new(Keys).in(dir).make(cluster, addresses) })
	if err != nil {
		return nil, err
	}
	// This is a separate directory, because directories of earlier versions lack it.
	frontProxy := filepath.Join(dir, "front-proxy")
	err = makeDir(frontProxy, func(dir string) error { return new(Keys).withFrontProxyIn(dir).makeFrontProxy(cluster) })
	if err != nil {
		return nil, err
	}
	return new(Keys).in(dir).withFrontProxyIn(frontProxy), nil
}

// makeDir fills dir unless it exists. It fills a temporary directory and renames it, so that an
// interrupted run leaves a complete directory or none, never keys that do not match.
func makeDir(dir string, fill func(dir string) error) error {
	_, err := os.Stat(dir)
	if err == nil {
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("keys and certificates: %w", err)
	}
	temporary, err := os.MkdirTemp(filepath.Dir(dir), ".pki-")
	if err != nil {
		return fmt.Errorf("keys and certificates: %w", err)
	}
	defer os.RemoveAll(temporary)
	if err := fill(temporary); err != nil {
		return fmt.Errorf("make keys and certificates: %w", err)
	}
	if err := os.Rename(temporary, dir); err != nil {
		return fmt.Errorf("make keys and certificates: %w", err)
	}
	return nil
}

func (k *Keys) in(dir string) *Keys {
	at := func(name string) string { return filepath.Join(dir, name) }
	k.CACert, k.CAKey = at("ca.crt"), at("ca.key")
	k.ServerCert, k.ServerKey = at("apiserver.crt"), at("apiserver.key")
	k.AdminCert, k.AdminKey = at("admin.crt"), at("admin.key")
	k.ServiceAccountKey = at("sa.key")
	return k
}

func (k *Keys) withFrontProxyIn(dir string) *Keys {
	at := func(name string) string { return filepath.Join(dir, name) }
	k.FrontProxyCACert, k.FrontProxyCAKey = at("ca.crt"), at("ca.key")
	k.FrontProxyCert, k.FrontProxyKey = at("client.crt"), at("client.key")
	return k
}

func (k *Keys) make(cluster string, addresses []net.IP) error {
	ca, caKey, err := newCA(cluster, k.CACert, k.CAKey)
	if err != nil {
		return err
	}
	if _, err := newKey(k.ServiceAccountKey); err != nil {
		return err
	}
	serving := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "kube-apiserver"},
		DNSNames:    []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
		IPAddresses: append([]net.IP{net.IPv4(127, 0, 0, 1), net.IPv4(10, 96, 0, 1)}, addresses...),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if err := sign(serving, ca, caKey, k.ServerCert, k.ServerKey); err != nil {
		return err
	}
	admin := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	return sign(admin, ca, caKey, k.AdminCert, k.AdminKey)
}

func (k *Keys) makeFrontProxy(cluster string) error {
	ca, caKey, err := newCA(cluster+" front proxy", k.FrontProxyCACert, k.FrontProxyCAKey)
	if err != nil {
		return err
	}
	client := &x509.Certificate{
		Subject:     pkix.Name{CommonName: FrontProxyName},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	return sign(client, ca, caKey, k.FrontProxyCert, k.FrontProxyKey)
}

// newCA generates a CA and writes its certificate and key.
func newCA(name, certFile, keyFile string) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := newKey(keyFile)
	if err != nil {
		return nil, nil, err
	}
	ca, err := cert.NewSelfSignedCACert(cert.Config{CommonName: name + " (Atoll playground)"}, key)
	if err != nil {
		return nil, nil, err
	}
	return ca, key, writeCert(certFile, ca.Raw)
}

func newKey(file string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	pem, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return nil, err
	}
	return key, os.WriteFile(file, pem, 0o600)
}

// sign completes a certificate, signs it for a new key and writes both.
func sign(template, ca *x509.Certificate, caKey crypto.Signer, certFile, keyFile string) error {
	key, err := newKey(keyFile)
	if err != nil {
		return err
	}
	template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return err
	}
	template.NotBefore = ca.NotBefore
	template.NotAfter = time.Now().Add(validity)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	raw, err := x509.CreateCertificate(rand.Reader, template, ca, key.Public(), caKey)
	if err != nil {
		return err
	}
	return writeCert(certFile, raw)
}

func writeCert(file string, raw []byte) error {
	certificate, err := x509.ParseCertificate(raw)
	if err != nil {
		return err
	}
	pem, err := cert.EncodeCertificates(certificate)
	if err != nil {
		return err
	}
	return os.WriteFile(file, pem, 0o600)
}

// WriteKubeconfig writes an administrator's kubeconfig with all data inlined.
func (k *Keys) WriteKubeconfig(file, cluster, server string) error {
	return k.WriteKubeconfigAs(file, cluster, server, "")
}

// WriteKubeconfigAs writes one with which the administrator impersonates a user.
func (k *Keys) WriteKubeconfigAs(file, cluster, server, user string) error {
	config := clientcmdapi.NewConfig()
	var data [3][]byte
	for i, name := range []string{k.CACert, k.AdminCert, k.AdminKey} {
		raw, err := os.ReadFile(name)
		if err != nil {
			return fmt.Errorf("write the kubeconfig: %w", err)
		}
		data[i] = raw
	}
	config.Clusters[cluster] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: data[0]}
	config.AuthInfos[cluster+"-admin"] = &clientcmdapi.AuthInfo{ClientCertificateData: data[1], ClientKeyData: data[2], Impersonate: user}
	config.Contexts[cluster] = &clientcmdapi.Context{Cluster: cluster, AuthInfo: cluster + "-admin"}
	config.CurrentContext = cluster
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		return fmt.Errorf("write the kubeconfig: %w", err)
	}
	return nil
}

// Node has the paths of the files of a node's kubelet.
type Node struct{ ClientCert, ClientKey, ServerCert, ServerKey string }

// MakeNode generates the certificates of a node in dir: one with which its kubelet authenticates to the API server, and one with
// which it serves at an address.
func (k *Keys) MakeNode(dir, name string, address net.IP) (Node, error) {
	at := func(file string) string { return filepath.Join(dir, file) }
	node := Node{ClientCert: at("client.crt"), ClientKey: at("client.key"), ServerCert: at("server.crt"), ServerKey: at("server.key")}
	return node, makeDir(dir, func(dir string) error {
		pair, err := tls.LoadX509KeyPair(k.CACert, k.CAKey)
		if err != nil {
			return err
		}
		signer, ok := pair.PrivateKey.(crypto.Signer)
		if !ok {
			return fmt.Errorf("%s: cannot sign", k.CAKey)
		}
		at := func(file string) string { return filepath.Join(dir, file) }
		client := &x509.Certificate{
			Subject:     pkix.Name{CommonName: "system:node:" + name, Organization: []string{"system:nodes"}},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}
		if err := sign(client, pair.Leaf, signer, at("client.crt"), at("client.key")); err != nil {
			return err
		}
		serving := &x509.Certificate{
			Subject:     pkix.Name{CommonName: "system:node:" + name, Organization: []string{"system:nodes"}},
			DNSNames:    []string{name},
			IPAddresses: []net.IP{address},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		}
		return sign(serving, pair.Leaf, signer, at("server.crt"), at("server.key"))
	})
}
