package expose

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Where a member's API server publishes how it proves to be itself. Every
// kube-apiserver with a front proxy keeps it true.
const (
	authorityNamespace = "kube-system"
	authorityName      = "extension-apiserver-authentication"
)

// frontProxy reads a member's authority. Its absence is an error: without it
// nobody could tell the member's users from anybody else.
func frontProxy(published *unstructured.Unstructured) (*v1alpha1.FrontProxy, error) {
	data, _, err := unstructured.NestedStringMap(published.Object, "data")
	if err != nil {
		return nil, fmt.Errorf("ConfigMap %s/%s of the member is not readable: %w", authorityNamespace, authorityName, err)
	}
	bundle := []byte(data["requestheader-client-ca-file"])
	if len(authorities(bundle)) == 0 {
		return nil, errors.New("the member's API server has no front-proxy authority: start it with --requestheader-client-ca-file and --proxy-client-cert-file")
	}
	out := &v1alpha1.FrontProxy{CABundle: bundle}
	for _, list := range []struct {
		key  string
		into *[]string
	}{
		{"requestheader-allowed-names", &out.AllowedNames},
		{"requestheader-username-headers", &out.UsernameHeaders},
		{"requestheader-group-headers", &out.GroupHeaders},
		{"requestheader-extra-headers-prefix", &out.ExtraHeaderPrefixes},
		{"requestheader-uid-headers", &out.UIDHeaders},
	} {
		if data[list.key] == "" {
			continue
		}
		if err := json.Unmarshal([]byte(data[list.key]), list.into); err != nil {
			// Half of it must not do: without its names, any certificate would.
			return nil, fmt.Errorf("%s in ConfigMap %s/%s of the member is not a list of strings", list.key, authorityNamespace, authorityName)
		}
	}
	if len(out.UsernameHeaders) == 0 {
		return nil, errors.New("the member's API server does not say who its user is: start it with --requestheader-username-headers")
	}
	return out, nil
}

// authorities gives the public key of each certificate in a bundle: that, and not
// the certificate, is what a client's certificate is verified with.
func authorities(bundle []byte) map[string]bool {
	out := map[string]bool{}
	for {
		var block *pem.Block
		if block, bundle = pem.Decode(bundle); block == nil {
			return out
		}
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil {
			out[string(cert.RawSubjectPublicKeyInfo)] = true
		}
	}
}

// sharesAuthority names another cluster that trusts a certificate of the same
// authority, if there is one: each of the two could speak for the other's users.
func sharesAuthority(name string, authority *v1alpha1.FrontProxy, clusters []*v1alpha1.Cluster) (other string, shares bool) {
	mine := authorities(authority.CABundle)
	for _, c := range clusters {
		if c.Name == name || c.Status.FrontProxy == nil {
			continue
		}
		for theirs := range authorities(c.Status.FrontProxy.CABundle) {
			if mine[theirs] && (other == "" || c.Name < other) {
				other = c.Name
			}
		}
	}
	return other, other != ""
}
