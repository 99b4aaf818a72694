package server

import (
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
)

// servingNames returns all names and IPs by which clients may reach the server, in a
// stable order: a certificate with exactly these need not be signed again.
func (c *Config) servingNames() []string {
	names := []string{"localhost", "127.0.0.1", "::1", memberServerName}
	if host, err := os.Hostname(); err == nil {
		names = append(names, strings.ToLower(host))
	}
	if ip := net.ParseIP(c.BindAddress); ip.IsUnspecified() {
		for _, ip := range hostIPs() {
			names = append(names, ip.String())
		}
	} else {
		names = append(names, ip.String())
	}
	names = append(names, c.TLSNames...)
	slices.Sort(names)
	return slices.Compact(names)
}

// hostIPs returns this machine's addresses that other machines can reach.
func hostIPs() []net.IP {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	var ips []net.IP
	for _, addr := range addrs {
		if network, ok := addr.(*net.IPNet); ok && network.IP.IsGlobalUnicast() {
			ips = append(ips, network.IP)
		}
	}
	return ips
}

// split separates host names from IPs.
func split(all []string) (names []string, ips []net.IP) {
	for _, name := range all {
		if ip := net.ParseIP(name); ip != nil {
			ips = append(ips, ip)
		} else {
			names = append(names, name)
		}
	}
	return names, ips
}

func serialNumber() (*big.Int, error) {
	// RFC 5280 requires a positive number of at most 20 octets.
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 159))
	if err != nil {
		return nil, fmt.Errorf("choose a serial number: %w", err)
	}
	return serial.Add(serial, big.NewInt(1)), nil
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func encodeCert(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: c.Raw})
}

// adminKubeconfig returns a self-contained kubeconfig.
func (p *pki) adminKubeconfig(url string) ([]byte, error) {
	var data [3][]byte
	for i, name := range []string{caCert, adminCert, adminKey} {
		var err error
		if data[i], err = os.ReadFile(p.file(name)); err != nil {
			return nil, err
		}
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["atoll"] = &clientcmdapi.Cluster{Server: url, CertificateAuthorityData: data[0]}
	config.AuthInfos["atoll-admin"] = &clientcmdapi.AuthInfo{ClientCertificateData: data[1], ClientKeyData: data[2]}
	config.Contexts["atoll"] = &clientcmdapi.Context{Cluster: "atoll", AuthInfo: "atoll-admin"}
	config.CurrentContext = "atoll"
	return clientcmd.Write(*config)
}
