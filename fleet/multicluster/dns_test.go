package multicluster

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	mcsv1alpha1 "sigs.k8s.io/mcs-api/pkg/apis/v1alpha1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/atoll-dev/atoll/fleet/interpret"
)

// dns answers as CoreDNS' plug-in multicluster does (github.com/coredns/multicluster, multicluster.go and object/): it reads
// ServiceImports of v1alpha1, and EndpointSlices with the label multicluster.kubernetes.io/service-name.
type dns struct {
	imports []*mcsv1alpha1.ServiceImport
	slices  []*discoveryv1.EndpointSlice
}

// addresses returns the A and AAAA records of HOST.CLUSTER.NAME.NAMESPACE, or of NAME.NAMESPACE without a host.
func (d *dns) addresses(t *testing.T, name string) (out []string) {
	t.Helper()
	labels := strings.Split(name, ".")
	host, cluster := "", ""
	if len(labels) == 4 {
		host, cluster, labels = labels[0], labels[1], labels[2:]
	}
	for _, i := range d.imports {
		switch {
		case i.Name != labels[0] || i.Namespace != labels[1]:
		case i.Spec.Type != mcsv1alpha1.Headless && host == "":
			if len(i.Spec.Ports) > 0 { // it answers once for each port
				out = append(out, i.Spec.IPs...)
			}
		default:
			out = append(out, d.endpoints(i.Namespace, i.Name, host, cluster)...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (d *dns) endpoints(namespace, service, host, cluster string) (out []string) {
	for _, s := range d.slices {
		l := s.Labels
		if s.Namespace != namespace || l[mcsv1alpha1.LabelServiceName] != service || cluster != "" && l[mcsv1alpha1.LabelSourceCluster] != cluster {
			continue
		}
		for _, e := range s.Endpoints {
			if !valueOr(e.Conditions.Ready, true) {
				continue
			}
			for _, a := range e.Addresses {
				named := valueOr(e.Hostname, "")
				if named == "" {
					named = strings.NewReplacer(".", "-", ":", "-").Replace(a)
				}
				if host == "" || host == named {
					out = append(out, a)
				}
			}
		}
	}
	return out
}

// inCluster returns the objects of a cluster that imports a Service with three endpoints in east. The last one is about to stop.
func inCluster(t *testing.T, cluster, spec string) *dns {
	t.Helper()
	s := Source{UID: "1"}
	s.Namespace, s.Name = "shop", "web"
	made := Merge([]Export{{Cluster: "east", Service: service(t, spec)}}).ServiceImport(s, mcsv1beta1.ServiceExportSpec{}, `{"west":["10.96.0.7","fd00::7"]}`)
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(made)
	if err != nil {
		t.Fatal(err)
	}
	k, _ := interpret.Find(schema.GroupKind{Group: mcsv1beta1.GroupName, Kind: mcsv1beta1.ServiceImportKindName})
	data, err := json.Marshal(k.PrepareShare(&unstructured.Unstructured{Object: fields}, interpret.Share{Cluster: cluster}).Object)
	if err != nil {
		t.Fatal(err)
	}
	// The type's versions have the same schema, and clusters convert between them by changing apiVersion.
	imported := &mcsv1alpha1.ServiceImport{}
	if err := json.Unmarshal(data, imported); err != nil {
		t.Fatal(err)
	}
	found := slice(t, `{addressType: IPv4, ports: [{name: http, port: 8080}], endpoints: [{addresses: [10.0.0.1], hostname: db-0, zone: z1}, {addresses: [10.0.0.2]}, {addresses: [10.0.0.3], hostname: db-2}]}`)
	return &dns{imports: []*mcsv1alpha1.ServiceImport{imported}, slices: EndpointSlices(s, "east", Collect([]*discoveryv1.EndpointSlice{found}, map[string]bool{"10.0.0.3": true}))}
}

// TestDNS: CoreDNS finds in a cluster the addresses of the derived Service there, and of a headless Service the endpoints that
// are ready, each by its hostname and cluster.
func TestDNS(t *testing.T) {
	const http, headless = "{ports: [{name: http, port: 80}]}", "{clusterIP: None, ports: [{name: http, port: 80}]}"
	for _, test := range []struct{ cluster, spec, name, want string }{
		{"west", http, "web.shop", "[10.96.0.7 fd00::7]"},
		{"north", http, "web.shop", "[]"}, // until the derived Service has an address there
		{"west", http, "other.shop", "[]"},
		{"west", headless, "web.shop", "[10.0.0.1 10.0.0.2]"},
		{"west", headless, "db-0.east.web.shop", "[10.0.0.1]"},
		{"west", headless, "10-0-0-2.east.web.shop", "[10.0.0.2]"},
		{"west", headless, "db-2.east.web.shop", "[]"}, // it is about to stop
		{"west", headless, "db-0.west.web.shop", "[]"},
	} {
		if got := fmt.Sprint(inCluster(t, test.cluster, test.spec).addresses(t, test.name)); got != test.want {
			t.Errorf("%s in %s has %s, want %s", test.name, test.cluster, got, test.want)
		}
	}
	for _, s := range inCluster(t, "west", headless).slices {
		if zone := valueOr(s.Endpoints[0].Zone, ""); zone != "z1" {
			t.Errorf("zone %q", zone)
		}
	}
}
