package workspaces

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/atoll-dev/atoll/kv"
)

// namedDefinition is a CustomResourceDefinition with that many rules.
func namedDefinition(name string, rules int) string {
	var all []string
	for i := range rules {
		all = append(all, fmt.Sprintf(`{"rule":"self > %d"}`, i))
	}
	return fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"%[1]ss.example.com"},"spec":{"group":"example.com","scope":"Namespaced",
"names":{"plural":"%[1]ss","singular":%[1]q,"kind":%[1]q},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object",
"properties":{"spec":{"type":"object","properties":{"size":{"type":"integer","x-kubernetes-validations":[%[2]s]}}}}}}}]}}`, name, strings.Join(all, ","))
}

// namedPolicy is a ValidatingAdmissionPolicy with that many expressions.
func namedPolicy(name string, expressions int) string {
	return fmt.Sprintf(`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicy","metadata":{"name":%q},"spec":{"failurePolicy":"Fail",
"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["secrets"]}]},"validations":%s}}`, name, repeated(expressions, `{"expression":"true"}`))
}

// namedHooks is a ValidatingWebhookConfiguration that calls nothing that exists, with that many matchConditions.
func namedHooks(name string, conditions int) string {
	var all []string
	for i := range conditions {
		all = append(all, fmt.Sprintf(`{"name":"c%d","expression":"false"}`, i))
	}
	return fmt.Sprintf(`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingWebhookConfiguration","metadata":{"name":%q},"webhooks":[{"name":"%[1]s.example.com","admissionReviewVersions":["v1"],"sideEffects":"None",
"failurePolicy":"Ignore","clientConfig":{"url":"https://192.0.2.1/"},"rules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["secrets"]}],"matchConditions":[%s]}]}`, name, strings.Join(all, ","))
}

const (
	policiesPath = registration + "/validatingadmissionpolicies"
	hooksPath    = registration + "/validatingwebhookconfigurations"
)

// TestCompiledLimits: a workspace has at most as many definitions and expressions as its limits say. Writes that add none pass
// at the limit, and a deletion makes room. Another workspace has limits of its own.
func TestCompiledLimits(t *testing.T) {
	s := newStage(t, "a", "b")
	s.awake["a"].SetCompiledLimits(Compiled{Definitions: 2, Expressions: 10})
	s.awake["b"].SetCompiledLimits(Compiled{Definitions: 1, Expressions: 1})
	refused := func(a response, words ...string) {
		t.Helper()
		for _, word := range append(words, "delete", "raise spec.limits.") {
			if s.want(403, a); !strings.Contains(a.body, word) && !strings.Contains(a.body, "remove") {
				t.Errorf("the message lacks %q: %s", word, a.body)
			}
		}
	}
	create := func(path, body string) response { return s.as(admin, "POST", "/clusters/a"+path, body) }
	apply := func(path, name, body string) response {
		return s.as(admin, "PATCH", "/clusters/a"+path+"/"+name+"?fieldManager=me&force=true", body)
	}
	s.want(201, create(definitionsPath, namedDefinition("one", 2)))
	refused(create(definitionsPath, namedDefinition("two", 9)), "expressions 2, requested 9 more, limit 10", `workspace \"a\"`)
	s.want(201, create(definitionsPath, namedDefinition("two", 0)))
	refused(create(definitionsPath, namedDefinition("three", 0)), "definitions 2, requested 1 more, limit 2")
	refused(apply(definitionsPath, "threes.example.com", namedDefinition("three", 0)), "definitions 2, requested 1 more, limit 2")
	s.want(201, s.as(admin, "POST", "/clusters/b"+definitionsPath, namedDefinition("one", 0)))

	s.want(201, create(policiesPath, namedPolicy("p", 4)))
	s.want(201, create(hooksPath, namedHooks("h", 3))) // 9 of 10
	refused(create(policiesPath, namedPolicy("q", 2)), "expressions 9, requested 2 more, limit 10")
	refused(create(hooksPath, namedHooks("g", 2)), "expressions 9, requested 2 more, limit 10")
	refused(apply(policiesPath, "p", namedPolicy("p", 6)), "expressions 9, requested 2 more, limit 10")
	refused(apply(hooksPath, "h", namedHooks("h", 5)), "expressions 9, requested 2 more, limit 10")
	refused(apply(definitionsPath, "ones.example.com", namedDefinition("one", 4)), "expressions 9, requested 2 more, limit 10")
	s.want(201, create(hooksPath, namedHooks("g", 0))) // it takes memory too
	refused(create(hooksPath, namedHooks("f", 0)), "expressions 10, requested 1 more, limit 10")

	s.awake["a"].SetCompiledLimits(Compiled{})
	s.want(200, apply(policiesPath, "p", namedPolicy("p", 3)))
	refused(apply(policiesPath, "p", namedPolicy("p", 4)), "expressions 9, requested 1 more, limit 0")
	s.want(200, s.as(admin, "PATCH", "/clusters/a"+definitionsPath+"/ones.example.com?fieldManager=you", `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"ones.example.com","labels":{"a":"b"}}}`))
	s.eventually("definitions beyond the limit are served", func() bool {
		return s.as(admin, "GET", "/clusters/a/apis/example.com/v1/namespaces/default/twos", "").code == http.StatusOK
	})
	s.awake["a"].SetCompiledLimits(Compiled{Definitions: 2, Expressions: 10})
	s.want(200, s.as(admin, "DELETE", "/clusters/a"+definitionsPath+"/ones.example.com", ""))
	s.eventually("a deletion makes room", func() bool {
		return create(definitionsPath, namedDefinition("three", 3)).code == http.StatusCreated // the controller of definitions deletes it
	})
}

// TestCompiledLimitsAtOnce: writes at once do not pass the limit together.
func TestCompiledLimitsAtOnce(t *testing.T) {
	s := newStage(t, "a")
	s.awake["a"].SetCompiledLimits(Compiled{Definitions: 3, Expressions: 10})
	var policies, definitions atomic.Int64
	var all sync.WaitGroup
	create := func(created *atomic.Int64, path, body string) {
		switch a := s.as(admin, "POST", "/clusters/a"+path, body); a.code {
		case http.StatusCreated:
			created.Add(1)
		case http.StatusForbidden:
		default:
			t.Error(a.code, a.body)
		}
	}
	for i := range 12 {
		all.Go(func() { create(&policies, policiesPath, namedPolicy(fmt.Sprint("p", i), 2)) })
		all.Go(func() { create(&definitions, definitionsPath, namedDefinition(fmt.Sprint("d", i), 0)) })
	}
	all.Wait()
	if policies.Load() != 5 || definitions.Load() != 3 {
		t.Errorf("%d policies and %d definitions", policies.Load(), definitions.Load())
	}
}

// TestCompiledOfEarlierVersion: objects without entries, which an earlier version of Atoll has written, count.
func TestCompiledOfEarlierVersion(t *testing.T) {
	s := newStage(t, "a")
	s.want(201, s.as(admin, "POST", "/clusters/a"+definitionsPath, namedDefinition("one", 3)))
	s.want(201, s.as(admin, "POST", "/clusters/a"+policiesPath, namedPolicy("p", 4)))
	s.want(201, s.as(admin, "POST", "/clusters/a"+hooksPath, namedHooks("h", 2)))
	w := s.awake["a"]
	before, err := s.keyspaces["a"].Usage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.client.KV.Delete(t.Context(), kv.CompiledKey, clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	if after, err := s.keyspaces["a"].Usage(t.Context()); err != nil || after != before {
		t.Errorf("the entries count as objects: %v, %v, %v", before, after, err)
	}
	w.SetCompiledLimits(Compiled{Definitions: 1, Expressions: 10})
	if a := s.want(403, s.as(admin, "POST", "/clusters/a"+policiesPath, namedPolicy("q", 2))); !strings.Contains(a.body, "expressions 9, requested 2 more, limit 10") {
		t.Error(a.body)
	}
	s.want(201, s.as(admin, "POST", "/clusters/a"+policiesPath, namedPolicy("q", 1)))
	s.want(403, s.as(admin, "POST", "/clusters/a"+definitionsPath, namedDefinition("two", 0)))
	if again, err := w.client.KV.Get(t.Context(), kv.CompiledKey, clientv3.WithPrefix(), clientv3.WithCountOnly()); err != nil || again.Count != 5 {
		t.Errorf("%d entries, %v", again.Count, err) // one for each object, and kv.CompiledKey
	}
}

// TestTurnsOfWebhooks: requests evaluate matchConditions of webhooks in turns, and have none while a webhook is called.
func TestTurnsOfWebhooks(t *testing.T) {
	s := newStage(t, "a")
	h := newHook(t)
	taken := s.awake["a"].turns
	configuration := strings.Replace(h.configuration("ValidatingWebhookConfiguration", "validate", h.at("/validate")), `"sideEffects"`,
		`"matchConditions":[{"name":"named","expression":"object.metadata.name != 'unmatched'"}],"sideEffects"`, 1)
	s.want(201, s.as(admin, "POST", "/clusters/a"+hooksPath, configuration))
	const maps = "/clusters/a/api/v1/namespaces/default/configmaps"
	s.eventually("the webhook is called", func() bool {
		before := h.calls.Load()
		s.want(201, s.as(admin, "POST", maps+"?dryRun=All", `{"metadata":{"name":"try"}}`))
		return h.calls.Load() > before
	})
	for range cap(taken) {
		taken <- struct{}{}
	}
	before := h.calls.Load()
	answer := make(chan response)
	go func() { answer <- s.as(admin, "POST", maps, `{"metadata":{"name":"matched"}}`) }()
	s.want(200, s.as(admin, "GET", maps, ""))
	select {
	case a := <-answer:
		t.Errorf("a request did not wait: %d %s", a.code, a.body)
	default:
	}
	if h.calls.Load() != before {
		t.Error("a webhook was called before its conditions could be evaluated")
	}
	for range cap(taken) {
		<-taken
	}
	s.want(201, <-answer)
	if h.calls.Load() != before+1 {
		t.Error("the webhook was not called")
	}
	s.want(201, s.as(admin, "POST", maps, `{"metadata":{"name":"unmatched"}}`))

	h.during = func() {
		if len(taken) > 0 {
			t.Error("a request has a turn while a webhook is called")
		}
	}
	s.want(201, s.as(admin, "POST", maps, `{"metadata":{"name":"more"}}`))
	h.during = nil
	for range 10 { // at once
		go func() { answer <- s.as(admin, "POST", maps+"?dryRun=All", `{"metadata":{"name":"most"}}`) }()
	}
	for range 10 {
		s.want(201, <-answer)
	}
	if n := len(taken); n > 0 {
		t.Errorf("%d turns are taken", n)
	}
}
