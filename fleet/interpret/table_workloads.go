package interpret

// workloadKinds create pods, and are placed by policy.
//
// The default mode is what users expect who apply an object once. Workloads that only add capacity
// are divided. Workloads with an identity, and those that do something once, run in one cluster: no
// user wants three databases of one name, or a nightly report sent three times. Workloads that
// belong to each node run in each cluster.
func workloadKinds() []KindInfo {
	template := []string{"spec", "template"}
	return []KindInfo{
		{GroupVersionKind: kind("", "v1", "Pod"), Resource: "pods", Placed: true, DefaultMode: Single, Single: true,
			template: []string{}, prepare: preparePod, written: writtenPod, health: podHealth, finished: podFinished, lost: lostPod, aggregate: aggregatePod, notGenerated: true,
			Descriptions: Descriptions{Needs: wordsPodNeeds, Left: "`priority`, `preemptionPolicy`, `overhead`, the volume of its token",
				Health: "phase, condition `Ready`, why containers wait", Status: "as the cluster reports it; failed if it was deleted there before it finished"}},
		{GroupVersionKind: kind(appsGroup, "v1", "Deployment"), Resource: "deployments", Placed: true, DefaultMode: Divided, Divided: true,
			template: template, health: deploymentHealth, aggregate: aggregateDeployment,
			Descriptions: Descriptions{Needs: wordsPodNeeds, Left: wordsAutoscaled, Health: wordsRollout,
				Status: wordsCounts + "; `Available` where all are; `Progressing` done when all are done"}},
		{GroupVersionKind: kind(appsGroup, "v1", "ReplicaSet"), Resource: "replicasets", Placed: true, DefaultMode: Divided, Divided: true,
			template: template, health: replicaSetHealth, aggregate: aggregateReplicaSet,
			Descriptions: Descriptions{Needs: wordsPodNeeds, Left: wordsAutoscaled, Health: "replicas available", Status: wordsCounts + "; failures of any cluster"}},
		{GroupVersionKind: kind("", "v1", "ReplicationController"), Resource: "replicationcontrollers", Placed: true, DefaultMode: Divided, Divided: true,
			template: template, health: replicaSetHealth, aggregate: aggregateReplicaSet,
			Descriptions: Descriptions{Needs: wordsPodNeeds, Left: wordsAutoscaled, Health: "replicas available", Status: wordsCounts + "; failures of any cluster"}},
		{GroupVersionKind: kind(appsGroup, "v1", "StatefulSet"), Resource: "statefulsets", Placed: true, DefaultMode: Single, Divided: true,
			template: template, needs: statefulSetNeeds, prepare: prepareStatefulSet, share: shareStatefulSet,
			health: statefulSetHealth, lacksPods: statefulSetLacksPods, aggregate: aggregateStatefulSet,
			Descriptions: Descriptions{Needs: wordsPodNeeds + "; its Service; StorageClasses of its claims", Left: wordsAutoscaled, Health: wordsRollout + wordsRejected,
				Status: wordsCounts}},
		{GroupVersionKind: kind(appsGroup, "v1", "DaemonSet"), Resource: "daemonsets", Placed: true, DefaultMode: Duplicated,
			template: template, health: daemonSetHealth, lacksPods: daemonSetLacksPods, aggregate: aggregateDaemonSet,
			Descriptions: Descriptions{Needs: wordsPodNeeds, Health: wordsRollout + wordsRejected, Status: "counts of nodes add up"}},
		{GroupVersionKind: kind(batchGroup, "v1", "Job"), Resource: "jobs", Placed: true, DefaultMode: Single, Divided: true,
			template: template, replicas: jobReplicas, indivisible: jobIndivisible, prepare: prepareJob, written: writtenJob, share: shareJob,
			health: jobHealth, lacksPods: jobLacksPods, finished: jobFinished, lost: lostJob, aggregate: aggregateJob,
			Descriptions: Descriptions{Needs: wordsPodNeeds, Left: "`selector` and the labels that go with it; `ttlSecondsAfterFinished` is kept here", Health: "conditions `Complete`, `Failed`, `Suspended`" + wordsRejected,
				Status: "counts add up where it is divided; else what every cluster has done; complete when it is in every cluster; failed when it is in one, or was deleted there before it finished, and the others have stopped"}},
		{GroupVersionKind: kind(batchGroup, "v1", "CronJob"), Resource: "cronjobs", Placed: true, DefaultMode: Single,
			template: []string{"spec", "jobTemplate", "spec", "template"}, aggregate: aggregateCronJob,
			Descriptions: Descriptions{Needs: wordsPodNeeds, Status: "latest times; the active Jobs of the cluster with the most"}},
	}
}

const (
	wordsPodNeeds   = "the references of its pods: ServiceAccount, ConfigMaps, Secrets, claims, PriorityClass, RuntimeClass"
	wordsAutoscaled = "`replicas` under an autoscaler"
	wordsCounts     = "counts add up where it is divided; else those of the slowest cluster"
	wordsRollout    = "rollout: replicas updated and available"
	wordsRejected   = "; events about pods that the cluster rejects"
)

// companionKinds act on workloads.
func companionKinds() []KindInfo {
	return []KindInfo{
		{GroupVersionKind: kind("policy", "v1", "PodDisruptionBudget"), Resource: "poddisruptionbudgets", Configuration: true,
			follows: budgetFollows, share: shareBudget, health: budgetHealth, aggregate: aggregateBudget,
			Descriptions: Descriptions{Follows: "the workloads whose pods it selects", Health: "enough pods healthy", Status: "counts add up where the pods are divided; else those of the cluster that allows the fewest disruptions"}},
		{GroupVersionKind: kind("autoscaling", "v2", "HorizontalPodAutoscaler"), Resource: "horizontalpodautoscalers",
			follows: autoscalerFollows, share: shareAutoscaler, health: autoscalerHealth, aggregate: aggregateAutoscaler,
			Descriptions: Descriptions{Follows: "its target", Health: "conditions `AbleToScale`, `ScalingActive`", Status: "replicas add up where the target is divided; else the fewest; the worst of conditions"}},
		{GroupVersionKind: kind(networkingGroup, "v1", "Ingress"), Resource: "ingresses",
			needs: ingressNeeds, follows: ingressFollows, aggregate: aggregateIngress,
			Descriptions: Descriptions{Needs: "its IngressClass, Secrets with its certificates", Follows: "its backend Services",
				Status: "addresses of all clusters that answer"}},
	}
}

// gatewayKinds are custom resources that many control planes have.
func gatewayKinds() []KindInfo {
	route := func(version, name, resource string) KindInfo {
		return KindInfo{GroupVersionKind: kind(gatewayGroup, version, name), Resource: resource, Custom: true,
			needs: routeNeeds, follows: routeFollows, health: routeHealth, aggregate: aggregateRoute,
			Descriptions: Descriptions{Needs: "its parent Gateways, its CustomResourceDefinition", Follows: "its backend Services", Health: "conditions `Accepted`, `ResolvedRefs` of each parent",
				Status: "parents of all clusters, the worst of their conditions"}}
	}
	return []KindInfo{
		{GroupVersionKind: kind(gatewayGroup, "v1", "Gateway"), Resource: "gateways", Custom: true,
			needs: gatewayNeeds, health: conditionsHealth, aggregate: aggregateGateway,
			Descriptions: Descriptions{Needs: "its GatewayClass, Secrets with its certificates, its CustomResourceDefinition", Health: wordsConditions,
				Status: "addresses of all clusters that answer; the worst of conditions"}},
		route("v1", "HTTPRoute", "httproutes"),
		route("v1", "GRPCRoute", "grpcroutes"),
		route("v1alpha2", "TLSRoute", "tlsroutes"),
		route("v1alpha2", "TCPRoute", "tcproutes"),
		route("v1alpha2", "UDPRoute", "udproutes"),
		{GroupVersionKind: kind(gatewayGroup, "v1beta1", "ReferenceGrant"), Resource: "referencegrants", Custom: true, follows: grantFollows,
			Descriptions: Descriptions{Follows: wordsEveryWorkload + ", and the objects that it names"}},
	}
}

// admissionKinds judge requests. They come last: a webhook that exists before its server would
// reject every request.
func admissionKinds() []KindInfo {
	webhooks := Descriptions{Follows: "the Services that it calls"}
	policyBinding := func(policy, resource string) KindInfo {
		return KindInfo{GroupVersionKind: kind(admissionGroup, "v1", policy+"Binding"), Resource: resource, ClusterScoped: true,
			needs: policyBindingNeeds, follows: policyBindingFollows(policy), Descriptions: Descriptions{Needs: "the ConfigMap with its parameters", Follows: "its " + policy}}
	}
	return []KindInfo{
		{GroupVersionKind: kind(admissionGroup, "v1", "ValidatingAdmissionPolicy"), Resource: "validatingadmissionpolicies", ClusterScoped: true, Configuration: true},
		policyBinding("ValidatingAdmissionPolicy", "validatingadmissionpolicybindings"),
		{GroupVersionKind: kind(admissionGroup, "v1", "MutatingAdmissionPolicy"), Resource: "mutatingadmissionpolicies", ClusterScoped: true, Configuration: true},
		policyBinding("MutatingAdmissionPolicy", "mutatingadmissionpolicybindings"),
		{GroupVersionKind: kind("apiregistration.k8s.io", "v1", "APIService"), Resource: "apiservices", ClusterScoped: true,
			follows: apiServiceFollows, health: conditionsHealth, notGenerated: true, // its status here concerns only this control plane
			Descriptions: Descriptions{Follows: "its Service", Health: wordsConditions}},
		{GroupVersionKind: kind(admissionGroup, "v1", "ValidatingWebhookConfiguration"), Resource: "validatingwebhookconfigurations", ClusterScoped: true,
			follows: webhookFollows, Descriptions: webhooks},
		{GroupVersionKind: kind(admissionGroup, "v1", "MutatingWebhookConfiguration"), Resource: "mutatingwebhookconfigurations", ClusterScoped: true,
			follows: webhookFollows, Descriptions: webhooks},
	}
}
