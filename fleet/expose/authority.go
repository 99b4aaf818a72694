package expose

import (
	"cmp"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Where a member's API server publishes how its front proxy authenticates. Every kube-apiserver
// with a front proxy keeps it up to date.
const (
	authorityNamespace = "kube-system"
	authorityName      = "extension-apiserver-authentication"
)

// frontProxy reads a member's front-proxy authority. A missing authority is an error: without it,
// requests of the member's users cannot be authenticated.
func frontProxy(published *unstructured.Unstructured) (*v1alpha1.FrontProxy, error) {
	data, _, err := unstructured.NestedStringMap(published.Object, "data")
	if err != nil {
		return nil, fmt.Errorf("decode ConfigMap %s/%s of the member: %w", authorityNamespace, authorityName, err)
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
			// Fail instead of skipping it: without allowed names, any certificate would be
			// accepted.
			return nil, fmt.Errorf("%s in ConfigMap %s/%s of the member is not a list of strings", list.key, authorityNamespace, authorityName)
		}
	}
	if len(out.UsernameHeaders) == 0 {
		return nil, errors.New("the member's API server does not publish a username header: start it with --requestheader-username-headers")
	}
	return out, nil
}

// authorities returns the public key of each certificate in a bundle, because the key and not the
// certificate verifies a client's certificate.
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

// sharesAuthority returns another cluster that has an authority which a cluster publishes, if there is one: each of
// the two could impersonate the other's users. An authority belongs to the cluster for which it was recorded first, so that no
// member can end the service of another one by publishing its authority. If it is recorded for both, as it was by earlier
// versions, it belongs to the older cluster.
func sharesAuthority(cluster *v1alpha1.Cluster, published *v1alpha1.FrontProxy, clusters []*v1alpha1.Cluster) (other string, shares bool) {
	mine, recorded := authorities(published.CABundle), map[string]bool{}
	if p := cluster.Status.FrontProxy; p != nil {
		recorded = authorities(p.CABundle)
	}
	for _, c := range clusters {
		if c.Name == cluster.Name || c.Status.FrontProxy == nil {
			continue
		}
		for theirs := range authorities(c.Status.FrontProxy.CABundle) {
			if mine[theirs] && !(recorded[theirs] && isOlder(cluster, c)) && (other == "" || c.Name < other) {
				other = c.Name
			}
		}
	}
	return other, other != ""
}

func isOlder(a, b *v1alpha1.Cluster) bool {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name)) < 0
}
