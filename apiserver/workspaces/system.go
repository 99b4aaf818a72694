package workspaces

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"go.etcd.io/etcd/client/v3/kubernetes"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/uuid"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage/value"
	"sigs.k8s.io/yaml"
)

// definitionsResource is the resource of CustomResourceDefinitions.
var definitionsResource = schema.GroupResource{Group: apiextensionsv1.GroupName, Resource: "customresourcedefinitions"}

// parseDefinition returns a definition as upstream stores one whose names are accepted and which is served.
func parseDefinition(manifest []byte, now time.Time) (*apiextensionsv1.CustomResourceDefinition, error) {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(manifest, crd); err != nil {
		return nil, fmt.Errorf("parse a CustomResourceDefinition: %w", err)
	}
	crd.UID, crd.Generation, crd.CreationTimestamp = uuid.NewUUID(), 1, metav1.NewTime(now.Truncate(time.Second))
	crd.Status.AcceptedNames, crd.Status.StoredVersions = crd.Spec.Names, nil
	for _, version := range crd.Spec.Versions {
		if version.Storage {
			crd.Status.StoredVersions = append(crd.Status.StoredVersions, version.Name)
		}
	}
	// Clients that create the first object at once wait for two seconds after the transition: see upstream's handler.
	since := metav1.NewTime(now.Add(-time.Hour).Truncate(time.Second))
	crd.Status.Conditions = nil
	for _, condition := range []apiextensionsv1.CustomResourceDefinitionConditionType{apiextensionsv1.NamesAccepted, apiextensionsv1.Established} {
		crd.Status.Conditions = append(crd.Status.Conditions, apiextensionsv1.CustomResourceDefinitionCondition{
			Type: condition, Status: apiextensionsv1.ConditionTrue, LastTransitionTime: since, Reason: "BuiltIn", Message: "the definition is part of Atoll"})
	}
	apiextensionsapiserver.Scheme.Default(crd)
	return crd, nil
}

// Install writes the definitions of Config.System into the workspace that provides them, unless it has them. They are served at once. Two
// servers of different versions overwrite each other's definitions when they start; the last one wins.
func (s *Server) Install(ctx context.Context, w *Workspace) error {
	for _, manifest := range s.config.System {
		crd, err := parseDefinition(manifest, time.Now())
		if err == nil {
			err = s.install(ctx, w, crd)
		}
		if err != nil {
			return fmt.Errorf("install the definitions of all workspaces: %w", err)
		}
	}
	return nil
}

func (s *Server) install(ctx context.Context, w *Workspace, crd *apiextensionsv1.CustomResourceDefinition) error {
	key, transformer := definitionsPrefix+crd.Name, s.config.Transformer(definitionsResource)
	got, err := w.client.Get(ctx, key, kubernetes.GetOptions{})
	if err != nil {
		return fmt.Errorf("read %s: %w", crd.Name, err)
	}
	if got.KV != nil {
		data, _, err := transformer.TransformFromStorage(ctx, got.KV.Value, value.DefaultContext(key))
		if err != nil {
			return fmt.Errorf("decrypt %s: %w", crd.Name, err)
		}
		decoded, err := decodeDefinition(data)
		if err != nil {
			return fmt.Errorf("decode %s: %w", crd.Name, err)
		}
		if equality.Semantic.DeepEqual(decoded.Spec, crd.Spec) {
			return nil
		}
		crd.UID, crd.Generation, crd.CreationTimestamp = decoded.UID, decoded.Generation+1, decoded.CreationTimestamp
	}
	crd.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	encoded, err := json.Marshal(crd)
	if err != nil {
		return fmt.Errorf("encode %s: %w", crd.Name, err)
	}
	stored, err := transformer.TransformToStorage(ctx, encoded, value.DefaultContext(key))
	if err != nil {
		return fmt.Errorf("encrypt %s: %w", crd.Name, err)
	}
	if _, err := w.client.KV.Put(ctx, key, string(stored)); err != nil {
		return fmt.Errorf("write %s: %w", crd.Name, err)
	}
	return nil
}

// decodeDefinition decodes a stored definition. Upstream stores them in another encoding, after a controller has changed their status.
func decodeDefinition(data []byte) (*apiextensionsv1.CustomResourceDefinition, error) {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	obj, _, err := apiextensionsapiserver.Codecs.UniversalDeserializer().Decode(data, nil, nil)
	if err != nil {
		return nil, err
	}
	if is, ok := obj.(*apiextensionsv1.CustomResourceDefinition); ok {
		return is, nil
	}
	internal := &apiextensions.CustomResourceDefinition{} // no version converts to another one directly
	if err := apiextensionsapiserver.Scheme.Convert(obj, internal, nil); err != nil {
		return nil, err
	}
	if err := apiextensionsapiserver.Scheme.Convert(internal, crd, nil); err != nil {
		return nil, err
	}
	apiextensionsapiserver.Scheme.Default(crd)
	return crd, nil
}

// announce adds the definitions of all workspaces to discovery, so that a client that only reads discovery starts no server of custom
// resources.
func (c *chain) announce(server *genericapiserver.GenericAPIServer, manifests [][]byte) error {
	groups, versions := map[string]*metav1.APIGroup{}, map[schema.GroupVersion][]apidiscoveryv2.APIResourceDiscovery{}
	for _, manifest := range manifests {
		crd, err := parseDefinition(manifest, time.Now())
		if err != nil {
			return err
		}
		for _, version := range crd.Spec.Versions {
			gv := schema.GroupVersion{Group: crd.Spec.Group, Version: version.Name}
			if _, known := versions[gv]; !known {
				served := metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: gv.Version}
				if groups[gv.Group] == nil {
					groups[gv.Group] = &metav1.APIGroup{Name: gv.Group, PreferredVersion: served}
				}
				groups[gv.Group].Versions = append(groups[gv.Group].Versions, served)
			}
			versions[gv] = append(versions[gv], announced(crd, &version))
		}
	}
	for _, group := range groups {
		server.DiscoveryGroupManager.AddGroup(*group)
		c.announced.Insert(group.Name)
	}
	for gv, resources := range versions {
		c.generic.AggregatedDiscoveryGroupManager.AddGroupVersion(gv.Group, apidiscoveryv2.APIVersionDiscovery{
			Version: gv.Version, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent, Resources: resources})
	}
	return nil
}

// announced returns a definition's entry in discovery, as upstream's controller makes it.
func announced(crd *apiextensionsv1.CustomResourceDefinition, version *apiextensionsv1.CustomResourceDefinitionVersion) apidiscoveryv2.APIResourceDiscovery {
	names, kind := crd.Spec.Names, &metav1.GroupVersionKind{Group: crd.Spec.Group, Version: version.Name, Kind: crd.Spec.Names.Kind}
	out := apidiscoveryv2.APIResourceDiscovery{Resource: names.Plural, SingularResource: names.Singular, ResponseKind: kind, Scope: apidiscoveryv2.ScopeCluster,
		ShortNames: names.ShortNames, Categories: names.Categories, Verbs: metav1.Verbs{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"}}
	if crd.Spec.Scope == apiextensionsv1.NamespaceScoped {
		out.Scope = apidiscoveryv2.ScopeNamespace
	}
	if version.Subresources != nil && version.Subresources.Status != nil {
		out.Subresources = []apidiscoveryv2.APISubresourceDiscovery{{Subresource: "status", ResponseKind: kind, Verbs: metav1.Verbs{"get", "patch", "update"}}}
	}
	return out
}
