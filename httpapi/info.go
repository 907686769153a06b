package httpapi

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/wire"
)

func (s *server) infoRoutes() {
	tariffs := wire.NewTariffs(s.Tariffs)
	for path, id := range map[string]string{"/sandboxes/tariffs": "listTariffs", "/pricing": "getPricing"} {
		handle(s, route{
			method: http.MethodGet, path: path, id: id, tag: "service", public: true,
			summary: "Tariffs, prices, how they are billed, and limits",
		}, func(context.Context, *call, *none, *none) (wire.Tariffs, error) { return tariffs, nil })
	}
	handle(s, route{
		method: http.MethodGet, path: "/whoami", id: "whoAmI", tag: "service",
		summary: "Who the token belongs to",
	}, func(_ context.Context, c *call, _ *none, _ *none) (wire.WhoAmI, error) {
		p := c.principal
		return wire.WhoAmI{
			AccountID: p.AccountID, TokenID: p.TokenID, TokenName: p.TokenName, Admin: p.Admin,
			ExpiresAt: p.ExpiresAt.UTC(), Version: eqvps.Version,
		}, nil
	})
	s.mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(wire.Health{Status: "ok", Version: eqvps.Version})
	})
	s.mux.HandleFunc("GET /openapi.json", s.serveDocument)
	s.mux.HandleFunc("GET "+wire.Prefix+"/openapi.json", s.serveDocument)
}
