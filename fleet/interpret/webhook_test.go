package interpret

import (
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// TestWebhookExcludesFields: one question has one answer, and the error names both fields.
func TestWebhookExcludesFields(t *testing.T) {
	for spec, want := range map[string]string{
		"health: \"'Healthy'\"\nwebhook: {url: https://a.example/x, operations: [InterpretHealth]}":                                    "spec.webhook.operations: InterpretHealth and spec.health both answer this",
		"needs: \"[]\"\nwebhook: {url: https://a.example/x, operations: [InterpretDependency]}":                                        "InterpretDependency and spec.needs both answer this",
		"retain: [.spec.a]\nwebhook: {url: https://a.example/x, operations: [Retain]}":                                                 "Retain and spec.retain both answer this",
		"status: [{field: a, merge: Sum}]\nwebhook: {url: https://a.example/x, operations: [AggregateStatus]}":                         "AggregateStatus and spec.status both answer this",
		"components: \"[]\"\nwebhook: {url: https://a.example/x, operations: [InterpretComponent]}":                                    "InterpretComponent and spec.components both answer this",
		"replicas: {path: .spec.n, count: \"1\"}\nwebhook: {url: https://a.example/x, operations: [InterpretReplica]}":                 "InterpretReplica and spec.replicas.count both answer this",
		"replicas: {path: .spec.n}\nwebhook: {url: https://a.example/x, operations: [ReviseReplica]}":                                  "ReviseReplica and spec.replicas both answer this",
		"webhook: {url: https://a.example/x, operations: [InterpretReplica]}":                                                          "InterpretReplica requires ReviseReplica, or spec.replicas.path",
		"webhook: {url: https://a.example/x, operations: [InterpretReplica, ReviseReplica, InterpretComponent]}":                       "remove InterpretReplica or InterpretComponent",
		"mode: Divided\nwebhook: {url: https://a.example/x, operations: [InterpretComponent]}":                                         "cannot be divided",
		"mode: Divided\nwebhook: {url: https://a.example/x, operations: [InterpretHealth]}":                                            "mode Divided requires spec.replicas",
		"webhook: {url: \"http://a.example/\", operations: [Retain]}":                                                                  "spec.webhook.url: want https://HOST/PATH",
		"webhook: {url: \"https://me:pw@a.example/\", operations: [Retain]}":                                                           "spec.webhook.url: want https://HOST/PATH",
		"webhook: {url: \"https://a.example/?token=pw\", operations: [Retain]}":                                                        "Services are not resolved",
		"webhook: {url: https://a.example/, caBundle: bm8gcGVt, operations: [Retain]}":                                                 "spec.webhook.caBundle: has no certificate",
		"webhook: {url: https://a.example/, timeoutSeconds: 31, operations: [Retain]}":                                                 "spec.webhook.timeoutSeconds: 31: want 1 to 30",
		"webhook: {url: https://a.example/, operations: []}":                                                                           "spec.webhook.operations: list the questions",
		"mode: Divided\nreplicas: {path: .spec.n}\nwebhook: {url: https://a.example/, operations: [InterpretReplica]}":                 "",
		"mode: Divided\nwebhook: {url: https://a.example/, operations: [InterpretReplica, ReviseReplica]}\nhealth: \"'Healthy'\"":      "",
		"webhook: {url: https://a.example:8443/x, operations: [InterpretHealth, InterpretStatus]}\nstatus: [{field: a, merge: First}]": "",
	} {
		_, err := ParseCustomization(interpretation(t, spec))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s\ngot  %v\nwant %s", spec, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "pw") {
			t.Errorf("the message has the password: %v", err)
		}
	}
}

// fixedAnswers answers questions by their operation, and has no other answers.
type fixedAnswers map[v1alpha1.InterpretationOperation]Answer

func (f fixedAnswers) Answer(q Question) (Answer, error) {
	if a, ok := f[q.Operation]; ok {
		return a, nil
	}
	return Answer{}, errors.New("down")
}

// TestWithoutAnswers: nothing is concluded from a missing answer.
func TestWithoutAnswers(t *testing.T) {
	c, err := ParseCustomization(interpretation(t, "mode: Divided\nwebhook: {url: https://a.example/x, operations: [InterpretReplica, ReviseReplica, InterpretHealth, InterpretStatus, InterpretDependency, Retain]}"))
	if err != nil {
		t.Fatal(err)
	}
	of := func(answers Answers) KindInfo {
		k, _ := BuiltIn().AnsweredBy(answers).WithCustomizations(c).With(ring()).Find(ring().GroupKind())
		return k
	}
	obj := parse(t, "metadata: {name: red, namespace: shop, generation: 2}\nspec: {nodes: 6}\nstatus: {observedGeneration: 1}")
	obj.SetGroupVersionKind(ring().GroupVersionKind)
	for name, k := range map[string]KindInfo{"down": of(fixedAnswers{}), "no source": of(nil)} {
		if err := k.Unanswered(obj); !IsWaiting(err) || IsPending(err) {
			t.Errorf("%s: %v", name, err)
		}
		if n, ok := k.Replicas(obj); ok || n != 0 || k.CheckMode(obj, Divided) == "" {
			t.Errorf("%s: counted %d", name, n)
		}
		if _, err := k.Needs(obj); !IsWaiting(err) {
			t.Errorf("%s: needs: %v", name, err)
		}
		if _, err := k.Revise(obj, Share{Replicas: new(int32)}); !IsWaiting(err) {
			t.Errorf("%s: revised: %v", name, err)
		}
		if same, err := k.Revise(obj, Share{}); err != nil || same != obj {
			t.Errorf("%s: an object that runs whole was revised: %v", name, err)
		}
		if _, err := k.CollectedStatus(obj); !IsWaiting(err) {
			t.Errorf("%s: status: %v", name, err)
		}
		if _, _, err := k.Retain(obj, obj); !IsWaiting(err) {
			t.Errorf("%s: retained: %v", name, err)
		}
		if same, retained, err := k.Retain(obj, nil); err != nil || retained || same != obj {
			t.Errorf("%s: a new object was retained: %v", name, err)
		}
		live := obj.DeepCopy()
		live.SetGeneration(1)
		if health, _ := k.Health(live); health != v1alpha1.Unknown {
			t.Errorf("%s: health %s", name, health)
		}
		members := []MemberStatus{{Cluster: "east", Current: true, Generation: 2, Replicas: new(int32), Status: map[string]any{"observedGeneration": int64(1)}}}
		status, _, err := k.Aggregate(obj, members)
		if observed, _ := number(status, "observedGeneration"); err != nil || observed != 1 {
			t.Errorf("%s: the summary claims generation %d: %v", name, observed, err)
		}
	}
	six := int64(6)
	k := of(fixedAnswers{v1alpha1.InterpretReplica: {Replicas: &six}})
	if n, ok := k.Replicas(obj); n != 6 || !ok || k.ReplicasPath() != nil {
		t.Errorf("counted %d, path %v", n, k.ReplicasPath())
	}
}

// TestQuestionsAreEqual: what makes no difference to an answer is no part of its question.
func TestQuestionsAreEqual(t *testing.T) {
	obj := parse(t, "metadata: {name: red, namespace: shop, generation: 2, resourceVersion: '4'}\nspec: {nodes: 6}\nstatus: {a: 1}")
	key := func(operation v1alpha1.InterpretationOperation, edit func(*unstructured.Unstructured)) string {
		other := obj.DeepCopy()
		edit(other)
		keepStatus := operation == v1alpha1.InterpretHealth
		q, err := (&asker{interpretation: "i", webhook: &v1alpha1.InterpretationWebhook{}}).question(Question{Operation: operation}, other.Object, keepStatus)
		if err != nil {
			t.Fatal(err)
		}
		return q.Key()
	}
	nothing := func(*unstructured.Unstructured) {}
	status := func(u *unstructured.Unstructured) { u.Object["status"] = map[string]any{"a": int64(2)} }
	for name, tt := range map[string]struct {
		operation v1alpha1.InterpretationOperation
		edit      func(*unstructured.Unstructured)
		same      bool
	}{
		"another version":             {v1alpha1.InterpretReplica, func(u *unstructured.Unstructured) { u.SetResourceVersion("5"); u.SetGeneration(3) }, true},
		"another status of the spec":  {v1alpha1.InterpretReplica, status, true},
		"another summary":             {v1alpha1.AggregateStatus, status, true},
		"another status of the live":  {v1alpha1.InterpretHealth, status, false},
		"another spec":                {v1alpha1.InterpretReplica, func(u *unstructured.Unstructured) { u.Object["spec"] = map[string]any{} }, false},
		"another label":               {v1alpha1.InterpretReplica, func(u *unstructured.Unstructured) { u.SetLabels(map[string]string{"a": "b"}) }, false},
		"another object, same fields": {v1alpha1.InterpretReplica, func(u *unstructured.Unstructured) { u.SetName("blue") }, false},
	} {
		if same := key(tt.operation, nothing) == key(tt.operation, tt.edit); same != tt.same {
			t.Errorf("%s: equal %v", name, same)
		}
	}
}
