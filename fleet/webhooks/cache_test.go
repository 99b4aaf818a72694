package webhooks_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/webhooks"
	"github.com/atoll-dev/atoll/test/fakewebhook"
)

// otherCA returns a certificate authority that signed nothing.
func otherCA(t *testing.T) []byte {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "other"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	raw, err := x509.CreateCertificate(rand.Reader, ca, ca, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})
}

// cached returns the kind Ring, answered by a running cache, and the notifications.
func cached(t *testing.T, ask webhooks.Ask, in *v1alpha1.ResourceInterpretation) (interpret.KindInfo, chan interpret.Question) {
	t.Helper()
	c, err := interpret.ParseCustomization(in)
	if err != nil {
		t.Fatal(err)
	}
	cache := webhooks.NewCache(webhooks.Config{Ask: ask, Log: slog.New(slog.DiscardHandler), MaxPause: 50 * time.Millisecond})
	notified := make(chan interpret.Question, 1000)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { cache.Run(ctx, func(q interpret.Question) { notified <- q }) })
	t.Cleanup(func() { stop(); running.Wait() })
	ring := interpret.Generic(schema.GroupVersionKind{Group: "example.org", Version: "v1", Kind: "Ring"}, "rings", false, nil)
	k, _ := interpret.BuiltIn().AnsweredBy(cache).WithCustomizations(c).With(ring).Find(ring.GroupKind())
	return k, notified
}

// TestCacheDoesNotWait: an answer that is not there yet is pending, arrives with a notification, and is asked
// for once, whoever wrote the object since.
func TestCacheDoesNotWait(t *testing.T) {
	w := fakewebhook.New(t)
	w.On("InterpretReplica", answer(fakewebhook.Response{"replicas": 6}))
	k, notified := cached(t, webhooks.NewCaller(nil).Ask, interpretation(w, v1alpha1.InterpretReplica, v1alpha1.ReviseReplica))
	obj := object(t, manifest)
	if err := k.Unanswered(obj); !interpret.IsPending(err) || err.Error() != "waiting for the webhook of ResourceInterpretation rings to answer InterpretReplica" {
		t.Fatal(err)
	}
	if q := <-notified; q.Name != "red" || q.Namespace != "shop" || q.Operation != v1alpha1.InterpretReplica || q.Cluster != "" {
		t.Errorf("notified of %+v", q)
	}
	obj.SetResourceVersion("8")
	obj.SetGeneration(4)
	_ = unstructured.SetNestedField(obj.Object, "New", "status", "phase")
	if n, ok := k.Replicas(obj); n != 6 || !ok {
		t.Errorf("counted %d, %v", n, ok)
	}
	if n := w.Requests("InterpretReplica"); n != 1 {
		t.Errorf("%d requests", n)
	}
	_ = unstructured.SetNestedField(obj.Object, int64(7), "spec", "size", "nodes")
	if err := k.Unanswered(obj); !interpret.IsPending(err) {
		t.Errorf("another spec has the old answer: %v", err)
	}
	<-notified
}

// TestCacheRetries: a webhook that fails is asked again, while the answer is still needed.
func TestCacheRetries(t *testing.T) {
	w := fakewebhook.New(t)
	w.Down(true)
	w.On("InterpretHealth", answer(fakewebhook.Response{"healthy": true}))
	k, notified := cached(t, webhooks.NewCaller(nil).Ask, interpretation(w, v1alpha1.InterpretHealth))
	obj := object(t, manifest)
	_, _ = k.Health(obj)
	<-notified
	health, why := k.Health(obj)
	if health != v1alpha1.Unknown || why == "" || interpret.IsPending(k.AskAboutLive(obj)) {
		t.Errorf("%s: %s", health, why)
	}
	w.Down(false)
	for health != v1alpha1.Healthy {
		<-notified
		health, why = k.Health(obj)
	}
	if why != "" {
		t.Error(why)
	}
}

// TestCacheForgetsUnneeded: a question that no controller needs any more is not asked again.
func TestCacheForgetsUnneeded(t *testing.T) {
	var attempts atomic.Int32
	ask := func(_ context.Context, q interpret.Question) (interpret.Answer, error) {
		if q.Name == "later" {
			return interpret.Answer{Healthy: new(bool)}, nil
		}
		attempts.Add(1)
		return interpret.Answer{}, errors.New("down")
	}
	w := &fakewebhook.Webhook{URL: "https://example.org/"}
	k, notified := cached(t, ask, interpretation(w, v1alpha1.InterpretHealth))
	_, _ = k.Health(object(t, manifest))
	<-notified
	// While the webhook is paused after the failure, others wait, and then succeed. Until then the first
	// question would have been asked again.
	later := object(t, manifest)
	later.SetName("later")
	for health := v1alpha1.Unknown; health == v1alpha1.Unknown; {
		health, _ = k.Health(later)
		if health == v1alpha1.Unknown {
			<-notified
		}
	}
	if n := attempts.Load(); n != 1 {
		t.Errorf("%d attempts", n)
	}
}

// TestCacheAsksOnceForEqualQuestions: many workers ask for the same, and one request is made.
func TestCacheAsksOnceForEqualQuestions(t *testing.T) {
	var attempts atomic.Int32
	release := make(chan struct{})
	ask := func(ctx context.Context, _ interpret.Question) (interpret.Answer, error) {
		attempts.Add(1)
		<-release
		yes := true
		return interpret.Answer{Healthy: &yes}, nil
	}
	k, notified := cached(t, ask, interpretation(&fakewebhook.Webhook{URL: "https://example.org/"}, v1alpha1.InterpretHealth))
	obj := object(t, manifest)
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() { _, _ = k.Health(obj) })
	}
	all.Wait()
	close(release)
	<-notified
	if health, why := k.Health(obj); health != v1alpha1.Healthy || attempts.Load() != 1 {
		t.Errorf("%s %s after %d attempts", health, why, attempts.Load())
	}
}

// TestDirectAsksADeadWebhookOnce: a preview of many objects does not wait for each.
func TestDirectAsksADeadWebhookOnce(t *testing.T) {
	attempts := 0
	direct := webhooks.NewDirect(t.Context(), func(context.Context, interpret.Question) (interpret.Answer, error) {
		attempts++
		return interpret.Answer{}, errors.New("down")
	})
	c, err := interpret.ParseCustomization(interpretation(&fakewebhook.Webhook{URL: "https://example.org/"}, v1alpha1.InterpretHealth))
	if err != nil {
		t.Fatal(err)
	}
	ring := interpret.Generic(schema.GroupVersionKind{Group: "example.org", Version: "v1", Kind: "Ring"}, "rings", false, nil)
	k, _ := interpret.BuiltIn().AnsweredBy(direct).WithCustomizations(c).With(ring).Find(ring.GroupKind())
	for i := range 10 {
		obj := object(t, manifest)
		obj.SetName(fmt.Sprint("red-", i))
		if health, _ := k.Health(obj); health != v1alpha1.Unknown {
			t.Errorf("health %s", health)
		}
	}
	if attempts != 1 {
		t.Errorf("%d attempts", attempts)
	}
}
