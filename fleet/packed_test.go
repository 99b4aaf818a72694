package fleet

import (
	"encoding/json"
	"runtime"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const whole = `{"apiVersion":"apps/v1","kind":"Deployment",
"metadata":{"namespace":"shop","name":"web","uid":"u","resourceVersion":"7","generation":2,"creationTimestamp":"2026-01-01T00:00:00Z",
 "labels":{"a":"b"},"annotations":{"c":"<d>"},"finalizers":["f"],"ownerReferences":[{"apiVersion":"v1","kind":"K","name":"n","uid":"o","controller":true}]},
"spec":{"replicas":3,"share":0.5,"paused":false,"selector":null,"args":["<a>",1152921504606846976]},
"status":{"replicas":3}}`

// TestCachesHoldObjectsWhole: a packed object decodes to the original, including numbers, and each
// reader owns its copy.
func TestCachesHoldObjectsWhole(t *testing.T) {
	for _, without := range []string{"", "status", "spec"} {
		was := &unstructured.Unstructured{}
		if err := was.UnmarshalJSON([]byte(whole)); err != nil {
			t.Fatal(err)
		}
		delete(was.Object, without)
		want, err := json.Marshal(was.Object)
		if err != nil {
			t.Fatal(err)
		}
		was.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "kubectl"}})
		held, err := Pack(trimManagedFields)(was)
		if err != nil {
			t.Fatal(err)
		}
		meta, ok := held.(metav1.Object)
		if _, isPacked := held.(*packed); !isPacked || !ok || meta.GetNamespace() != "shop" || meta.GetName() != "web" || meta.GetResourceVersion() != "7" {
			t.Fatalf("held as %+v", held)
		}
		for range 2 {
			is, ok := Unpack(held)
			if !ok {
				t.Fatalf("%+v cannot be read", held)
			}
			if got, err := json.Marshal(is.Object); err != nil || string(got) != string(want) {
				t.Errorf("without %q: %v\n%s\nwant\n%s", without, err, got, want)
			}
			if replicas, found, err := unstructured.NestedInt64(is.Object, "spec", "replicas"); without != "spec" && (replicas != 3 || !found || err != nil) {
				t.Errorf("replicas are %v: %v", replicas, err)
			}
			is.Object["spec"] = "another"
			is.SetLabels(nil)
		}
	}
}

// BenchmarkCachedObject measures the memory of a cached object, as maps and packed, and the time to
// read one.
func BenchmarkCachedObject(b *testing.B) {
	data := []byte(deployed)
	parse := func() *unstructured.Unstructured {
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(data); err != nil {
			b.Fatal(err)
		}
		return u
	}
	pack := Pack(trimManagedFields)
	b.Run("read", func(b *testing.B) {
		held, _ := pack(parse())
		b.ReportAllocs()
		for b.Loop() {
			if _, ok := Unpack(held); !ok {
				b.Fatal("cannot be decoded")
			}
		}
	})
	for name, hold := range map[string]func() any{
		"held as maps": func() any { u := parse(); trimManagedFields(u); return u },
		"held packed":  func() any { held, _ := pack(parse()); return held },
	} {
		b.Run(name, func(b *testing.B) {
			held := make([]any, 0, b.N)
			before := heap()
			for range b.N {
				held = append(held, hold())
			}
			b.ReportMetric(float64(heap()-before)/float64(b.N), "B/object")
			runtime.KeepAlive(held)
		})
	}
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// deployed is a small Deployment as the API server returns it.
const deployed = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web-00001","namespace":"shop","uid":"2b1c2f7e-7a27-4bd4-a7a3-9d2c6f6a3c11",
"resourceVersion":"4711","generation":1,"creationTimestamp":"2026-01-01T00:00:00Z","labels":{"app":"web-00001","tier":"front"},"annotations":{"note":"small"},
"managedFields":[{"manager":"kubectl-create","operation":"Update","apiVersion":"apps/v1","time":"2026-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:replicas":{},"f:selector":{},"f:template":{"f:spec":{"f:containers":{"k:{\"name\":\"nginx\"}":{".":{},"f:image":{}}}}}}}}]},
"spec":{"replicas":3,"selector":{"matchLabels":{"app":"web-00001"}},"template":{"metadata":{"labels":{"app":"web-00001"}},"spec":{"containers":[{"name":"nginx","image":"nginx:1.29",
"ports":[{"containerPort":80,"protocol":"TCP"}],"env":[{"name":"MODE","value":"plain"}],"resources":{"requests":{"cpu":"100m","memory":"64Mi"}},"terminationMessagePath":"/dev/termination-log",
"terminationMessagePolicy":"File","imagePullPolicy":"IfNotPresent"}],"restartPolicy":"Always","terminationGracePeriodSeconds":30,"dnsPolicy":"ClusterFirst","securityContext":{},"schedulerName":"default-scheduler"}},
"strategy":{"type":"RollingUpdate","rollingUpdate":{"maxUnavailable":"25%","maxSurge":"25%"}},"revisionHistoryLimit":10,"progressDeadlineSeconds":600},
"status":{"observedGeneration":1,"replicas":3,"updatedReplicas":3,"readyReplicas":3,"availableReplicas":3,"conditions":[
{"type":"Available","status":"True","lastUpdateTime":"2026-01-01T00:00:00Z","lastTransitionTime":"2026-01-01T00:00:00Z","reason":"MinimumReplicasAvailable","message":"Deployment has minimum availability."},
{"type":"Progressing","status":"True","lastUpdateTime":"2026-01-01T00:00:00Z","lastTransitionTime":"2026-01-01T00:00:00Z","reason":"NewReplicaSetAvailable","message":"all replicas are available"}]}}`
