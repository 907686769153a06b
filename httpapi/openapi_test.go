package httpapi_test

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/eqvps/eqvps"
)

// operations is the interface as clients know it. A line may be added; one that
// changes or goes breaks somebody.
var operations = []string{
	"DELETE /sandboxes/{id} deleteSandbox",
	"DELETE /sandboxes/{id}/files removeFile",
	"DELETE /sandboxes/{id}/tasks/{task_id} killTask",
	"DELETE /secrets/{name} deleteSecret",
	"DELETE /tokens/{id} revokeToken",
	"GET /links/{id} getLink",
	"GET /pricing getPricing",
	"GET /sandboxes listSandboxes",
	"GET /sandboxes/tariffs listTariffs",
	"GET /sandboxes/{id} getSandbox",
	"GET /sandboxes/{id}/env getEnv",
	"GET /sandboxes/{id}/events listSandboxEvents",
	"GET /sandboxes/{id}/files getFile",
	"GET /sandboxes/{id}/files/list listFiles",
	"GET /sandboxes/{id}/files/raw downloadFile",
	"GET /sandboxes/{id}/files/stat statFile",
	"GET /sandboxes/{id}/ping pingSandbox",
	"GET /sandboxes/{id}/tasks listTasks",
	"GET /sandboxes/{id}/tasks/{task_id} getTask",
	"GET /sandboxes/{id}/usage getSandboxUsage",
	"GET /secrets listSecrets",
	"GET /tokens listTokens",
	"GET /whoami whoAmI",
	"PATCH /sandboxes/{id}/env changeEnv",
	"POST /drain drainServer",
	"POST /keys/rotate rotateKeys",
	"POST /sandboxes createSandbox",
	"POST /sandboxes/{id}/exec exec",
	"POST /sandboxes/{id}/exec/stream execStream",
	"POST /sandboxes/{id}/extend extendSandbox",
	"POST /sandboxes/{id}/files/link createLink",
	"POST /sandboxes/{id}/files/mkdir makeDir",
	"POST /sandboxes/{id}/files/move moveFile",
	"POST /sandboxes/{id}/keep-alive keepSandboxAlive",
	"POST /sandboxes/{id}/pause pauseSandbox",
	"POST /sandboxes/{id}/resume resumeSandbox",
	"POST /sandboxes/{id}/run run",
	"POST /sandboxes/{id}/run/stream runStream",
	"POST /tokens createToken",
	"PUT /links/{id} putLink",
	"PUT /sandboxes/{id}/files putFile",
	"PUT /sandboxes/{id}/files/raw uploadFile",
	"PUT /sandboxes/{id}/network setSandboxNetwork",
	"PUT /secrets/{name} putSecret",
}

type openAPI struct {
	OpenAPI string
	Info    struct{ Title, Version string }
	Servers []struct{ URL string }
	Paths   map[string]map[string]struct {
		OperationID string
		Summary     string
		Tags        []string
		Security    []map[string][]string
		Parameters  []struct {
			Name, In, Description string
			Required              bool
		}
		RequestBody *struct{ Content map[string]any }
		Responses   map[string]struct {
			Description string
			Codes       []string `json:"x-error-codes"`
			Content     map[string]struct{ Schema json.RawMessage }
		}
	}
	Components struct {
		Schemas         map[string]map[string]any
		SecuritySchemes map[string]any
	}
}

func TestOpenAPI(t *testing.T) {
	base := newFake().server(t)
	resp, text := send(t, "GET", base+"/openapi.json", "", "Authorization", "")
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "application/json" {
		t.Fatalf("%s: %s", resp.Status, text)
	}
	if _, again := send(t, "GET", newFake().server(t)+api+"/openapi.json", ""); again != text {
		t.Error("the document differs from server to server")
	}
	var doc openAPI
	if err := json.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.OpenAPI != "3.1.0" || doc.Info.Version != eqvps.Version || len(doc.Servers) != 1 || doc.Servers[0].URL != api {
		t.Errorf("head of the document: %+v %+v %+v", doc.OpenAPI, doc.Info, doc.Servers)
	}
	var got []string
	told := map[string]bool{}
	for path, methods := range doc.Paths {
		for method, op := range methods {
			name := strings.ToUpper(method) + " " + path
			got = append(got, name+" "+op.OperationID)
			if op.Summary == "" || len(op.Tags) != 1 {
				t.Errorf("%s: summary %q, tags %v", name, op.Summary, op.Tags)
			}
			public := path == "/pricing" || path == "/sandboxes/tariffs" || path == "/links/{id}"
			if public == (len(op.Security) > 0) {
				t.Errorf("%s: security is %v", name, op.Security)
			}
			success, wanted := 0, 1
			switch op.OperationID {
			case "exec", "run", "downloadFile", "getLink":
				wanted = 2 // a result, or a task; the whole, or a range
			}
			for status, r := range op.Responses {
				if r.Description == "" {
					t.Errorf("%s: %s has no description", name, status)
				}
				if status[0] == '2' {
					success++
					if len(r.Content) == 0 {
						t.Errorf("%s: %s has no content", name, status)
					}
					continue
				}
				if schema := string(r.Content["application/json"].Schema); schema != `{"$ref":"#/components/schemas/Error"}` || len(r.Codes) == 0 {
					t.Errorf("%s: %s lists %v with the schema %s", name, status, r.Codes, schema)
				}
				for _, code := range r.Codes {
					told[code] = true
				}
			}
			if success != wanted || op.Responses["500"].Description == "" || !public && op.Responses["401"].Description == "" {
				t.Errorf("%s: responses are %v", name, slices.Sorted(maps.Keys(op.Responses)))
			}
			// Each part of the path is declared, and nothing else is said to be.
			var want, have []string
			for _, m := range regexp.MustCompile(`\{(\w+)\}`).FindAllStringSubmatch(path, -1) {
				want = append(want, m[1])
			}
			for _, p := range op.Parameters {
				if p.Description == "" {
					t.Errorf("%s: parameter %s has no description", name, p.Name)
				}
				if p.In == "path" {
					have = append(have, p.Name)
				}
			}
			if !slices.Equal(want, have) {
				t.Errorf("%s: path parameters are %v, want %v", name, have, want)
			}
			bare := slices.Contains([]string{"drainServer", "keepSandboxAlive", "pauseSandbox", "rotateKeys"}, op.OperationID)
			if hasBody := (method == "post" || method == "put" || method == "patch") && !bare; hasBody != (op.RequestBody != nil) {
				t.Errorf("%s: body is %v", name, op.RequestBody)
			}
		}
	}
	slices.Sort(got)
	if diff := cmp.Diff(operations, got); diff != "" {
		t.Errorf("operations (-want +got):\n%s", diff)
	}
	// Every code that a route can cause is told somewhere. The rest belongs to
	// addresses that are no route, and to parts that are not there yet.
	for _, k := range eqvps.ErrorTable {
		if !told[string(k.Code)] && !slices.Contains([]eqvps.Code{eqvps.CodeNotFound, eqvps.CodeMethodNotAllowed}, k.Code) {
			t.Errorf("no operation tells of %s", k.Code)
		}
	}
	// Every reference leads somewhere, and no schema is left over.
	used := map[string]bool{}
	for _, m := range regexp.MustCompile(`"\$ref":"#/components/schemas/(\w+)"`).FindAllStringSubmatch(text, -1) {
		used[m[1]] = true
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(used)), slices.Sorted(maps.Keys(doc.Components.Schemas))); diff != "" {
		t.Errorf("schemas (-referenced +there):\n%s", diff)
	}
	if n := len(doc.Components.Schemas["Error"]["properties"].(map[string]any)["error"].(map[string]any)["enum"].([]any)); n != len(eqvps.ErrorTable) {
		t.Errorf("the document knows %d codes, the table %d", n, len(eqvps.ErrorTable))
	}
}
