package test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// requestFlows are single requests, and all of the answers.
func requestFlows() []flow {
	return []flow{
		{"errors", errorAnswers},
		{"encodings", encodings},
		{"pages", pages},
		{"documents", documents},
		{"versions", versions},
	}
}

func errorAnswers(s *side) {
	at := s.gadgets()
	s.request("POST", at, gadgetJSON("a", `{"color":"red"}`))
	s.request("POST", at, gadgetJSON("a", `{"color":"red"}`))
	s.request("GET", at+"/none", "")
	s.request("GET", at+"/a/none", "")
	s.request("GET", at+"/a/status", "")
	s.request("GET", at+"/a/scale", "")
	s.request("POST", at+"/a", gadgetJSON("a", `{}`))
	s.request("PUT", at, gadgetJSON("a", `{}`))
	s.request("PUT", at+"/a", gadgetJSON("b", `{}`))
	s.request("PUT", at+"/a", strings.Replace(gadgetJSON("a", `{}`), `"name"`, `"resourceVersion":"1","name"`, 1))
	s.request("PUT", at+"/a", strings.Replace(gadgetJSON("a", `{}`), `"name"`, `"uid":"11111111-2222-3333-4444-555555555555","name"`, 1))
	s.request("PUT", at+"/a", gadgetJSON("a", `{"color":"red"}`))
	s.request("PUT", at+"/none", gadgetJSON("none", `{}`))
	s.request("PUT", at+"/a/scale", `{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"a"},"spec":{"replicas":3}}`)
	s.request("POST", at, gadgetJSON("b", `{"color":"pink","copies":2}`))
	s.request("POST", at, gadgetJSON("b", `{"size":9,"limit":4}`))
	s.request("POST", at, gadgetJSON("", `{}`))
	s.request("POST", at, gadgetJSON("b", `{`))
	s.request("POST", at, ``)
	s.request("POST", at, strings.Replace(gadgetJSON("b", `{}`), "Gadget", "Gizmo", 1))
	s.request("POST", at, strings.Replace(gadgetJSON("b", `{}`), "/v1", "/v2", 1))
	s.request("POST", at, strings.Replace(gadgetJSON("b", `{}`), `"name"`, `"namespace":"elsewhere","name"`, 1))
	s.request("POST", at, gadgetJSON("b", `{}`), "Content-Type", "text/plain")
	s.request("POST", at, gadgetJSON("b", `{}`), "Content-Type", "application/cbor")
	s.request("POST", at, gadget("yaml", "size: 1"), "Content-Type", "application/yaml")
	for _, query := range []string{"fieldValidation=Strict", "fieldValidation=Warn", "fieldValidation=Ignore", "fieldValidation=Bogus", "dryRun=All", "dryRun=Bogus", "fieldManager=" + strings.Repeat("x", 130)} {
		s.request("POST", at+"?"+query, gadgetJSON("unknown", `{"nothing":1,"size":2,"size":3}`))
		s.request("DELETE", at+"/unknown", "")
	}
	for _, patch := range []struct{ kind, body string }{
		{"application/merge-patch+json", `{"spec":{"size":3}}`},
		{"application/merge-patch+json", `{"spec":`},
		{"application/json-patch+json", `[{"op":"add","path":"/spec/size","value":4}]`},
		{"application/json-patch+json", `[{"op":"jump"}]`},
		{"application/strategic-merge-patch+json", `{"spec":{"size":5}}`},
		{"application/json", `{"spec":{"size":5}}`},
		{"application/apply-patch+cbor", `x`},
	} {
		s.request("PATCH", at+"/a?dryRun=All", patch.body, "Content-Type", patch.kind)
	}
	apply := fmt.Sprintf(`{"apiVersion":"%s/v1","kind":"Gadget","metadata":{"name":"ssa"},"spec":{"size":3}}`, likeGroup)
	s.request("PATCH", at+"/ssa", apply, "Content-Type", "application/apply-patch+yaml")
	s.request("PATCH", at+"/ssa?fieldManager=one", apply, "Content-Type", "application/apply-patch+yaml")
	s.request("PATCH", at+"/ssa?fieldManager=two", strings.Replace(apply, "3}", "4}", 1), "Content-Type", "application/apply-patch+yaml")
	s.request("PATCH", at+"/ssa?fieldManager=two&force=true", strings.Replace(apply, "3}", "4}", 1), "Content-Type", "application/apply-patch+yaml")
	s.request("DELETE", at+"/a", `{"preconditions":{"uid":"11111111-2222-3333-4444-555555555555"}}`)
	s.request("DELETE", at+"/a", `{"preconditions":{"resourceVersion":"1"}}`)
	s.request("DELETE", at+"/a", `{"propagationPolicy":"Bogus"}`)
	s.request("DELETE", at+"/a", `{"gracePeriodSeconds":-1,"dryRun":["All"]}`)
	s.request("DELETE", at+"/none", "")
	for _, query := range []string{"labelSelector=%3D", "fieldSelector=spec.size%3D1", "fieldSelector=x", "limit=x", "timeoutSeconds=x", "pretty=true&limit=1"} {
		s.request("GET", at+"?"+query, "")
	}
	s.request("GET", strings.Replace(at, "gadgets", "nothings", 1), "")
	s.request("GET", strings.Replace(at, "/v1/", "/v9/", 1), "")
	s.request("GET", "/apis/"+likeGroup+"/v1/gadgets/a", "")
	s.request("GET", "/apis/"+likeGroup+"/v9", "")
	s.request("OPTIONS", at, "")
	s.request("HEAD", at+"/a", "")
	s.request("GET", at+"/a", "", "Impersonate-User", "bob")
	s.request("POST", at, gadgetJSON("b", `{}`), "Impersonate-User", "alice")
	s.request("PATCH", at+"/a", `{}`, "Impersonate-User", "alice", "Content-Type", "application/merge-patch+json")
	s.request("DELETE", at+"?labelSelector=none", "")
	s.request("DELETE", at, "")
	s.request("GET", at, "")
}

// encodings requests every encoding, including those that upstream does not offer for custom resources.
func encodings(s *side) {
	at := s.gadgets()
	s.request("POST", at, gadgetJSON("a", `{"color":"red","serial":"A"}`))
	const meta, table, protobuf = ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1", ";as=Table;g=meta.k8s.io;v=v1", "application/vnd.kubernetes.protobuf"
	for _, accept := range []string{
		"", "*/*", "application/*", "application/json;q=0.1, application/yaml", "application/yaml", "application/cbor", "application/cbor, application/json", "text/html",
		protobuf, protobuf + ", application/json", "application/json" + meta, protobuf + meta, protobuf + meta + ", application/json" + meta, "application/cbor" + meta,
		"application/json" + table, "application/json;as=Table;g=meta.k8s.io;v=v1beta1", protobuf + table, "application/json;as=Table;g=meta.k8s.io;v=v9", "application/json" + table + ", application/json",
		"application/json;as=Bogus;g=meta.k8s.io;v=v1", "application/json;stream=watch",
	} {
		s.request("GET", at+"/a", "", "Accept", accept)
		s.request("GET", at, "", "Accept", strings.ReplaceAll(accept, "PartialObjectMetadata", "PartialObjectMetadataList"))
	}
	s.request("GET", at+"?includeObject=None", "", "Accept", "application/json"+table)
	s.request("GET", at+"?includeObject=Object", "", "Accept", "application/json"+table)
	s.request("GET", at+"?includeObject=Bogus", "", "Accept", "application/json"+table)
	// Answers that are worth compressing, and a request that is too large.
	s.make("big", `{"settings":{"big":"`+strings.Repeat("much ", 50_000)+`"}}`)
	response, err := s.send(s.t.Context(), "GET", at+"/big", "", "Accept-Encoding", "gzip")
	if err != nil {
		s.t.Error(err)
		return
	}
	response.Body.Close()
	s.say("< %d %q %q", response.StatusCode, response.Header["Content-Encoding"], response.Header["Vary"])
	s.say("%s", s.quietlyPost(at, gadgetJSON("huge", `{"settings":{"huge":"`+strings.Repeat("more ", 700_000)+`"}}`)))
}

// pages are lists in parts and at revisions.
func pages(s *side) {
	at := s.gadgets()
	for i := range 5 {
		s.request("POST", at, gadgetJSON(fmt.Sprintf("p%d", i), fmt.Sprintf(`{"size":%d}`, i+1)))
	}
	var first, page struct {
		Metadata struct{ Continue, ResourceVersion string }
	}
	s.decode(s.request("GET", at+"?limit=2", ""), &first)
	s.request("DELETE", at+"/p3", "")
	// Of the revision of the first page, whatever happens in between.
	s.decode(s.request("GET", at+"?limit=2&continue="+first.Metadata.Continue, ""), &page)
	s.request("GET", at+"?limit=2&continue="+page.Metadata.Continue, "")
	s.request("GET", at+"?continue=bogus", "")
	for _, token := range []string{`{"v":"meta.k8s.io/v1","rv":999999999,"start":"p1\u0000"}`, `{"v":"meta.k8s.io/v1","rv":0,"start":"p1\u0000"}`, `{"v":"meta.k8s.io/v1","rv":-1,"start":"p1\u0000"}`, `{"v":"v9"}`} {
		s.request("GET", at+"?limit=1&continue="+base64.RawURLEncoding.EncodeToString([]byte(token)), "")
	}
	s.request("GET", at+"?limit=1&resourceVersion=1&continue="+first.Metadata.Continue, "")
	s.request("GET", at+"?limit=2&labelSelector=a", "")
	for _, version := range []string{"", "0", "1", first.Metadata.ResourceVersion, "999999999", "x", "-1"} {
		for _, match := range []string{"", "Exact", "NotOlderThan", "Bogus"} {
			if version == "1" && match != "NotOlderThan" {
				continue // it depends on when the store last compacted
			}
			if version == "999999999" && (match == "" || match == "Bogus") {
				continue // as NotOlderThan, after three more seconds
			}
			for _, limit := range []string{"", "&limit=1"} {
				if version == "999999999" && limit == "" {
					continue
				}
				s.request("GET", at+"?resourceVersionMatch="+match+"&resourceVersion="+version+limit, "")
			}
		}
	}
	for _, version := range []string{"0", "x"} {
		s.request("GET", at+"/p0?resourceVersion="+version, "")
	}
	s.request("GET", at+"?sendInitialEvents=true", "")
}

func (s *side) decode(body []byte, into any) {
	if err := json.Unmarshal(body, into); err != nil {
		s.t.Errorf("%s: %v", s.cluster, err)
	}
}

// documents are what says which types there are.
func documents(s *side) {
	group := "/apis/" + likeGroup
	for _, path := range []string{group, group + "/v1", group + "/v1beta1"} {
		s.request("GET", path, "")
		s.request("GET", path, "", "Accept", "application/vnd.kubernetes.protobuf")
	}
	s.request("POST", group, "{}")
	for _, kind := range []string{"", ";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"} {
		var list struct {
			Groups []json.RawMessage // of an APIGroupList
			Items  []json.RawMessage
		}
		s.decode(s.quietly("/apis", "application/json"+kind), &list)
		for _, g := range append(list.Groups, list.Items...) {
			if strings.Contains(string(g), `"`+likeGroup+`"`) {
				s.say("%s", readable(g))
			}
		}
	}
	var index struct {
		Paths map[string]struct{ ServerRelativeURL string }
	}
	s.eventually("OpenAPI v3 has the group", func(context.Context) error {
		s.decode(s.quietly("/openapi/v3", "application/json"), &index)
		for _, version := range []string{"/v1", "/v1beta1"} {
			if index.Paths["apis/"+likeGroup+version].ServerRelativeURL == "" {
				return fmt.Errorf("it lacks %s", version)
			}
		}
		return nil
	})
	for _, path := range []string{"apis/" + likeGroup, "apis/" + likeGroup + "/v1", "apis/" + likeGroup + "/v1beta1"} {
		if at, ok := index.Paths[path]; ok {
			s.request("GET", strings.Split(at.ServerRelativeURL, "?")[0], "")
		}
	}
	whole := s.awaitOpenAPIV2()
	for path, part := range whole.Paths {
		if strings.Contains(path, likeGroup) {
			whole.Definitions[path] = part
		}
	}
	for name := range whole.Definitions {
		if !strings.Contains(name, "like") {
			delete(whole.Definitions, name)
		}
	}
	raw, err := json.Marshal(whole.Definitions)
	if err != nil {
		s.t.Error(err)
	}
	s.say("%s", readable(raw))
}

type openAPIV2 struct {
	Paths, Definitions map[string]json.RawMessage
}

// awaitOpenAPIV2 waits until the document has the types: API servers put it
// together in the background.
func (s *side) awaitOpenAPIV2() (whole openAPIV2) {
	s.eventually("OpenAPI v2 has the group", func(context.Context) error {
		whole = openAPIV2{}
		s.decode(s.quietly("/openapi/v2", "application/json"), &whole)
		for _, kind := range []string{"v1.Gadget", "v1.Widget", "v1beta1.Widget"} {
			if whole.Definitions["dev.atoll.test.like."+kind] == nil {
				return fmt.Errorf("it lacks %s", kind)
			}
		}
		return nil
	})
	return whole
}

// quietly gets a document that is not to be noted as a whole.
func (s *side) quietly(path, accept string) []byte {
	response, err := s.send(s.t.Context(), "GET", path, "", "Accept", accept)
	if err != nil {
		s.t.Error(err)
		return nil
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Error(err)
	}
	return body
}

// quietlyPost sends a request without recording the whole answer.
func (s *side) quietlyPost(path, body string) string {
	response, err := s.send(s.t.Context(), "POST", path, body)
	if err != nil {
		s.t.Error(err)
		return ""
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Error(err)
	}
	return response.Status + "\n" + readable(answer)
}

// versions are two of one type, with a webhook between them.
func versions(s *side) {
	const at = "/apis/" + likeGroup
	widget := func(version, name, spec string) string {
		return fmt.Sprintf(`{"apiVersion":"%s/%s","kind":"Widget","metadata":{"name":%q},"spec":%s}`, likeGroup, version, name, spec)
	}
	s.request("POST", at+"/v1/widgets", widget("v1", "a", `{"size":3}`))
	s.request("GET", at+"/v1beta1/widgets/a", "")
	s.request("POST", at+"/v1beta1/widgets", widget("v1beta1", "b", `{"width":"4 cm"}`))
	s.request("GET", at+"/v1/widgets/b", "")
	s.request("GET", at+"/v1/widgets", "")
	s.request("GET", at+"/v1beta1/widgets", "")
	s.request("POST", at+"/v1beta1/widgets", widget("v1beta1", "c", `{"width":"wide"}`))
	s.request("PATCH", at+"/v1beta1/widgets/a", `{"spec":{"width":"7 cm"}}`, "Content-Type", "application/merge-patch+json")
	s.request("PATCH", at+"/v1beta1/widgets/a?fieldManager=one&force=true", widget("v1beta1", "a", `{"width":"8 cm"}`), "Content-Type", "application/apply-patch+yaml")
	s.request("GET", at+"/v1/widgets/a", "")
	s.kubectl("get", "widgets")
	s.kubectl("get", "widgets.v1beta1."+likeGroup, "-o", "jsonpath={.items[*].spec}")
	s.request("DELETE", at+"/v1beta1/widgets", "")
	s.request("GET", at+"/v1beta1/widgets", "")
}
