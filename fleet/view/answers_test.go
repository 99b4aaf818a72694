package view

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/webhooks"
	"github.com/atoll-dev/atoll/test/fakeapi"
	"github.com/atoll-dev/atoll/test/fakewebhook"
)

// askedBy returns a ResourceInterpretation of Secrets with a webhook.
func askedBy(w *fakewebhook.Webhook, operations ...any) *unstructured.Unstructured {
	return object(v1alpha1.Group+"/"+v1alpha1.Version, interpretationKind, "", "secrets", map[string]any{"spec": map[string]any{
		"target":  map[string]any{"apiVersion": "v1", "kind": "Secret"},
		"webhook": map[string]any{"url": w.URL, "caBundle": w.CABundle, "operations": operations}}})
}

// TestServerAsksWebhooksForSyncers: a syncer in a member gets answers about its objects from the server, which asks
// the webhook, and is notified of them. It does not learn the path or the CA of the webhook.
func TestServerAsksWebhooksForSyncers(t *testing.T) {
	w := fakewebhook.New(t)
	w.On("InterpretHealth", func(r fakewebhook.Request) fakewebhook.Response {
		return fakewebhook.Response{"healthy": r.Name == "one"}
	})
	w.On("Retain", func(r fakewebhook.Request) fakewebhook.Response {
		return fakewebhook.Patch(fakewebhook.Set("/data", r.ObservedObject["data"]))
	})
	w.On("InterpretStatus", func(fakewebhook.Request) fakewebhook.Response { return fakewebhook.Refuse("no status today") })
	s := newFixture(t, secret("one"), bind("one", "east"), askedBy(w, "InterpretHealth", "Retain", "InterpretStatus"))
	s.host.cfg.Ask = webhooks.NewCaller(nil).Ask
	r := s.remote(0, 24*time.Hour)
	r.await(t)
	notified := make(chan types.NamespacedName, 100)
	defer r.Subscribe(func(key types.NamespacedName) { notified <- key })()
	kind := func() interpret.KindInfo {
		b, ok := r.Binding(keyTo("one"))
		if !ok {
			t.Fatal("no binding")
		}
		k, _ := r.KindOf(b)
		return k
	}
	fakeapi.Until(t, "the interpretation is known, and the webhook's answer", func() bool {
		health, _ := kind().Health(secret("one"))
		return health == v1alpha1.Healthy && w.Requests("InterpretHealth") > 0
	})
	for len(notified) > 0 {
		<-notified
	}
	live := secret("one")
	live.Object["data"] = map[string]any{"word": "b3RoZXI=", "count": int64(3)}
	if _, _, err := kind().Retain(secret("one"), live); !interpret.IsPending(err) {
		t.Errorf("not pending: %v", err)
	}
	if key := <-notified; key != keyTo("one") {
		t.Errorf("notified of %s", key)
	}
	kept, retained, err := kind().Retain(secret("one"), live)
	if n, _, _ := unstructured.NestedInt64(kept.Object, "data", "count"); err != nil || !retained || n != 3 {
		t.Errorf("retained %v: %v", kept, err)
	}
	fakeapi.Until(t, "the refusal is known", func() bool {
		_, err := kind().CollectedStatus(secret("one"))
		return err != nil && strings.Contains(err.Error(), "no status today (code 400)")
	})

	_, text := s.ask(syncerOf("east"), "GET", eastView+"/apis/"+apiVersion+"/"+interpretations, nil)
	if strings.Contains(text, "secret-path") || strings.Contains(text, "caBundle") || !strings.Contains(text, "InterpretHealth") {
		t.Errorf("the view has %s", text)
	}
}

// TestSyncersAskOnlyAboutTheirObjects: a syncer cannot ask about other objects, nor what concerns no cluster.
func TestSyncersAskOnlyAboutTheirObjects(t *testing.T) {
	w := fakewebhook.New(t)
	s := newFixture(t, secret("one"), bind("one", "east"), secret("two"), bind("two", "west"), askedBy(w, "InterpretHealth", "InterpretDependency", "Retain"))
	s.host.cfg.Ask = webhooks.NewCaller(nil).Ask
	raw := func(u *unstructured.Unstructured) json.RawMessage {
		data, err := json.Marshal(u.Object)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	for name, tt := range map[string]struct {
		binding string
		request QuestionRequest
		code    int
	}{
		"another object":          {"secret-one", QuestionRequest{Operation: v1alpha1.InterpretHealth, Object: raw(secret("two"))}, http.StatusForbidden},
		"another observed object": {"secret-one", QuestionRequest{Operation: v1alpha1.Retain, Object: raw(secret("one")), Observed: raw(secret("two"))}, http.StatusForbidden},
		"another cluster":         {"secret-two", QuestionRequest{Operation: v1alpha1.InterpretHealth, Object: raw(secret("two"))}, http.StatusNotFound},
		"a question of servers":   {"secret-one", QuestionRequest{Operation: v1alpha1.InterpretDependency, Object: raw(secret("one"))}, http.StatusBadRequest},
		"not for the webhook":     {"secret-one", QuestionRequest{Operation: v1alpha1.InterpretStatus, Object: raw(secret("one"))}, http.StatusBadRequest},
		"no object":               {"secret-one", QuestionRequest{Operation: v1alpha1.InterpretHealth, Object: json.RawMessage("3")}, http.StatusBadRequest},
	} {
		path := eastView + "/apis/" + apiVersion + "/namespaces/shop/" + boundObjects + "/" + tt.binding + "/" + answerResource
		if code, text := s.ask(syncerOf("east"), "POST", path, tt.request); code != tt.code {
			t.Errorf("%s: %d %s", name, code, text)
		}
	}
	if n := w.Requests("InterpretHealth") + w.Requests("InterpretDependency") + w.Requests("Retain"); n != 0 {
		t.Errorf("the webhook was asked %d times", n)
	}
}
