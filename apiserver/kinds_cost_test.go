package apiserver_test

import (
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/atoll-dev/atoll/apiserver/kinds"
)

// costFields is the number of fields of each measured kind.
const costFields = 40

// costSchema returns a schema with as many fields as a provider's types have.
func costSchema() *spec.Schema {
	fields := map[string]spec.Schema{}
	for i := range costFields {
		fields[fmt.Sprintf("argument_%d", i)] = *spec.StringProperty().WithDescription(strings.Repeat("What the argument is for. ", 6))
	}
	return object(map[string]spec.Schema{"spec": *object(fields), "status": *object(map[string]spec.Schema{"attributes": *object(fields)})})
}

// costCRD returns a CRD of the same kind.
func costCRD(group, kind string) *apiextensionsv1.CustomResourceDefinition {
	fields := map[string]apiextensionsv1.JSONSchemaProps{}
	for i := range costFields {
		fields[fmt.Sprintf("argument_%d", i)] = apiextensionsv1.JSONSchemaProps{Type: "string", Description: strings.Repeat("What the argument is for. ", 6)}
	}
	all := apiextensionsv1.JSONSchemaProps{Type: "object", Properties: fields}
	crd := crdOf(group, kind)
	crd.Spec.Versions[0].Schema.OpenAPIV3Schema = &apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
		"spec": all, "status": {Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"attributes": all}},
	}}
	return crd
}

// manyKinds returns a group with count kinds.
func manyKinds(count int, revision string) kinds.Group {
	all := make([]kinds.Names, count)
	for i := range all {
		all[i] = kindNames(fmt.Sprintf("Kind%d", i))
	}
	return kinds.Group{Name: "many.example.com", Versions: []kinds.Version{{Name: "v1", Revision: revision, Kinds: all}}}
}

// heap returns the live heap in KiB, after a collection, once background work has
// settled.
func heap(t *testing.T) int64 {
	t.Helper()
	const tolerance = 256
	var now int64
	await(t, "the heap is at rest", func() error {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		before := now
		now = int64(m.HeapAlloc+m.StackInuse) / 1024
		if before == 0 || max(now-before, before-now) > tolerance {
			return fmt.Errorf("%d KiB, and %d before", now, before)
		}
		return nil
	})
	return now
}

// cpu returns the CPU time that this process has used, in milliseconds.
func cpu(t *testing.T) int64 {
	t.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return (usage.Utime.Nano() + usage.Stime.Nano()) / int64(time.Millisecond)
}

// costs is a source whose schemas are costSchema's.
type costs struct{ *source }

func (c costs) Schema(schema.GroupVersionKind) (*spec.Schema, error) { return costSchema(), nil }

func (c costs) Open(kind schema.GroupVersionKind) (kinds.Definition, error) {
	merged, err := typeOf(costSchema())
	return kinds.Definition{Type: merged}, err
}

// TestCostOfKinds measures what 1,500 kinds cost a server, and what CRDs of the same
// kinds would cost. It limits the kinds to a twentieth of the CRDs' memory; other
// measurements are only printed (-v).
func TestCostOfKinds(t *testing.T) {
	if testing.Short() {
		t.Skip("creates CRDs for a comparison; not with -short")
	}
	const count, few, more, crds = 1500, 10, 100, 20
	source := costs{newSource()}
	server := serveKinds(t, source, makeFiles(t))
	await(t, "controllers run", func() error {
		_, err := server.client.CoreV1().ServiceAccounts("default").Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
	empty := heap(t)
	told := func(what string, since int64) int64 {
		now := heap(t)
		t.Logf("%-50s %7d KiB", what, now-since)
		return now
	}
	begun := time.Now()
	source.serve(manyKinds(count, "1"))
	const aggregated = "application/json;v=v2;g=apidiscovery.k8s.io;as=APIGroupDiscoveryList"
	await(t, "the kinds are announced", func() error {
		if _, _, body := ask(t, server.config, "/apis", "Accept", aggregated); !strings.Contains(body, `"kind1499s"`) {
			return fmt.Errorf("not announced")
		}
		return nil
	})
	t.Logf("%-50s %7d ms", "time to discovery", time.Since(begun).Milliseconds())
	served := told(fmt.Sprintf("%d kinds, discovered", count), empty)

	await(t, "the OpenAPI document is announced", func() error {
		if _, _, body := ask(t, server.config, "/openapi/v3"); !strings.Contains(body, "apis/many.example.com/v1") {
			return fmt.Errorf("not announced")
		}
		return nil
	})
	begun, work := time.Now(), cpu(t)
	code, _, document := ask(t, server.config, "/openapi/v3/apis/many.example.com/v1")
	if code != http.StatusOK {
		t.Fatalf("the OpenAPI document is %d %s", code, document)
	}
	t.Logf("%-50s %7d ms, %d ms of CPU, %d KiB", "OpenAPI document of all", time.Since(begun).Milliseconds(), cpu(t)-work, len(document)/1024)
	document = ""
	described := told("after it, more", served)

	all := dynamicClient(t, unlimited(server.config))
	use := func(i int) {
		r := schema.GroupVersionResource{Group: "many.example.com", Version: "v1", Resource: fmt.Sprintf("kind%ds", i)}
		u := of(fmt.Sprintf("Kind%d", i), "one", `{"argument_1":"x"}`)
		u.SetAPIVersion("many.example.com/v1")
		if _, err := all.Resource(r).Namespace("default").Apply(t.Context(), "one", u, metav1.ApplyOptions{FieldManager: "me"}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range few {
		use(i)
	}
	usedFew := told(fmt.Sprintf("after %d kinds are used, more", few), described)
	for i := few; i < more; i++ {
		use(i)
	}
	used := told(fmt.Sprintf("after %d kinds are used, more", more), usedFew)

	client, err := apiextensions.NewForConfig(unlimited(server.config))
	if err != nil {
		t.Fatal(err)
	}
	for i := range crds {
		if _, err := client.ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), costCRD("crds.example.com", fmt.Sprintf("Kind%d", i)), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range crds {
		await(t, "the CRD is served", func() error {
			if code, _, body := ask(t, server.config, fmt.Sprintf("/apis/crds.example.com/v1/kind%ds", i)); code != http.StatusOK {
				return fmt.Errorf("%d %s", code, body)
			}
			return nil
		})
	}
	compared := told(fmt.Sprintf("%d CRDs, more", crds), used)
	asCRDs := (compared - used) / crds * count
	t.Logf("%-50s %7d KiB", fmt.Sprintf("%d CRDs would be", count), asCRDs)
	if served-empty > asCRDs/20 {
		t.Errorf("%d kinds take %d KiB, more than a twentieth of the %d KiB of as many CRDs", count, served-empty, asCRDs)
	}
}

// unlimited is a client that does not wait between requests.
func unlimited(c *rest.Config) *rest.Config {
	c = rest.CopyConfig(c)
	c.QPS = -1
	return c
}
