-- Descriptions of tables, views and columns: DuckDB keeps them, and the reference is rendered from them.

COMMENT ON TABLE models IS 'Models as they were split or imported; a row per content and split.';
COMMENT ON COLUMN models.model_key IS 'Hash of content and split, or of imported tables.';
COMMENT ON COLUMN models.name IS 'Name of the model.';
COMMENT ON COLUMN models.source IS 'File or folder it came from.';
COMMENT ON COLUMN models.folder IS 'Folder of the split; NULL for imported tables.';
COMMENT ON COLUMN models.blocks IS 'Number of blocks.';
COMMENT ON COLUMN models.boundary_bytes IS 'Bytes per sample after each block.';
COMMENT ON COLUMN models.block_memory_bytes IS 'Bytes of the weights of each block; empty if not known.';
COMMENT ON COLUMN models.tensors IS 'Inputs, outputs and boundaries.';
COMMENT ON COLUMN models.block_times_us IS 'Estimates used for splitting, in µs; empty if not known.';
COMMENT ON COLUMN models.added_at IS 'Time at which the row was added.';
COMMENT ON COLUMN models.block_workspace_bytes IS 'Bytes that each block takes while it runs; empty if not known.';

COMMENT ON TABLE cells IS 'Measured latencies of single blocks; the newest of a key counts.';
COMMENT ON COLUMN cells.model_key IS 'Hash of content and split, or of imported tables.';
COMMENT ON COLUMN cells.block IS 'Number of the block.';
COMMENT ON COLUMN cells.gpu_class IS 'GPU class.';
COMMENT ON COLUMN cells.share IS 'Size of the vGPU in 300ths of a GPU.';
COMMENT ON COLUMN cells.basis IS 'loaded: other parts of the GPU were busy; solo: they were idle.';
COMMENT ON COLUMN cells.batch IS 'Samples in a batch.';
COMMENT ON COLUMN cells.artifact IS 'Folder below the artifact root; NULL for imported tables.';
COMMENT ON COLUMN cells.mean_us IS 'Mean latency in µs.';
COMMENT ON COLUMN cells.p50_us IS 'Median latency in µs.';
COMMENT ON COLUMN cells.p99_us IS '99th percentile of the latency in µs.';
COMMENT ON COLUMN cells.runs IS 'Number of runs.';
COMMENT ON COLUMN cells."interval" IS 'Relative half-width of the 95 % interval of the mean.';
COMMENT ON COLUMN cells.measured_at IS 'Time of the measurement.';

COMMENT ON TABLE sum_ratios IS 'Sums of block latencies beside the latency of the whole model.';
COMMENT ON COLUMN sum_ratios.model_key IS 'Hash of content and split, or of imported tables.';
COMMENT ON COLUMN sum_ratios.gpu_class IS 'GPU class.';
COMMENT ON COLUMN sum_ratios.vgpu_divisor IS 'The vGPU is 1/n of a GPU.';
COMMENT ON COLUMN sum_ratios.batch IS 'Samples in a batch.';
COMMENT ON COLUMN sum_ratios.blocks_us IS 'Sum of the mean latencies of the blocks in µs.';
COMMENT ON COLUMN sum_ratios.whole_us IS 'Mean latency of the whole model as one stage in µs.';
COMMENT ON COLUMN sum_ratios.measured_at IS 'Time of the measurement.';

COMMENT ON TABLE artifacts IS 'Built files of stages, per GPU class.';
COMMENT ON COLUMN artifacts.artifact IS 'Folder below the artifact root.';
COMMENT ON COLUMN artifacts.model_key IS 'Hash of content and split, or of imported tables.';
COMMENT ON COLUMN artifacts.first_block IS 'First block.';
COMMENT ON COLUMN artifacts.last_block IS 'Block after the last.';
COMMENT ON COLUMN artifacts.gpu_class IS 'GPU class.';
COMMENT ON COLUMN artifacts.runtime IS 'Runtime that loads it.';
COMMENT ON COLUMN artifacts.built_at IS 'Time of the build.';

COMMENT ON TABLE build_failures IS 'Stages that could not be built for a class; the planner has no cells of them.';
COMMENT ON COLUMN build_failures.model_key IS 'Hash of content and split, or of imported tables.';
COMMENT ON COLUMN build_failures.first_block IS 'First block.';
COMMENT ON COLUMN build_failures.last_block IS 'Block after the last.';
COMMENT ON COLUMN build_failures.gpu_class IS 'GPU class.';
COMMENT ON COLUMN build_failures.runtime IS 'Runtime that loads it.';
COMMENT ON COLUMN build_failures.reason IS 'Message of the builder.';
COMMENT ON COLUMN build_failures.failed_at IS 'Time of the failure.';

COMMENT ON TABLE utilisations IS 'Use of a GPU by a model that runs alone on a share; the newest counts.';
COMMENT ON COLUMN utilisations.model_key IS 'Hash of content and split, or of imported tables.';
COMMENT ON COLUMN utilisations.gpu_class IS 'GPU class.';
COMMENT ON COLUMN utilisations.share IS 'Size of the vGPU in 300ths of a GPU.';
COMMENT ON COLUMN utilisations.block IS 'Number of the block; NULL for every block.';
COMMENT ON COLUMN utilisations.batch IS 'Samples in a batch.';
COMMENT ON COLUMN utilisations.l2 IS 'Fraction of the L2 bandwidth used.';
COMMENT ON COLUMN utilisations.dram IS 'Fraction of the memory bandwidth used.';
COMMENT ON COLUMN utilisations.measured_at IS 'Time of the measurement.';

COMMENT ON TABLE pairs IS 'Two models that ran side by side on one GPU; the newest counts.';
COMMENT ON COLUMN pairs.gpu_class IS 'GPU class.';
COMMENT ON COLUMN pairs.model_1 IS 'Name of the first model.';
COMMENT ON COLUMN pairs.batch_1 IS 'Batch of the first model.';
COMMENT ON COLUMN pairs.share_1 IS 'Share of the first model in 300ths of a GPU.';
COMMENT ON COLUMN pairs.model_2 IS 'Name of the second model.';
COMMENT ON COLUMN pairs.batch_2 IS 'Batch of the second model.';
COMMENT ON COLUMN pairs.share_2 IS 'Share of the second model in 300ths of a GPU.';
COMMENT ON COLUMN pairs.latency_1_us IS 'Latency of the first model beside the second in µs; NULL if not measured.';
COMMENT ON COLUMN pairs.latency_2_us IS 'Latency of the second model beside the first in µs; NULL if not measured.';
COMMENT ON COLUMN pairs.measured_at IS 'Time of the measurement.';

COMMENT ON TABLE interference_models IS 'Interference models of GPU classes; the newest of a class is used for planning.';
COMMENT ON COLUMN interference_models.gpu_class IS 'GPU class.';
COMMENT ON COLUMN interference_models.c1_l2_self IS 'Coefficient of the own L2 use.';
COMMENT ON COLUMN interference_models.c2_l2_other IS 'Coefficient of the neighbour''s L2 use.';
COMMENT ON COLUMN interference_models.c3_dram_self IS 'Coefficient of the own memory use.';
COMMENT ON COLUMN interference_models.c4_dram_other IS 'Coefficient of the neighbour''s memory use.';
COMMENT ON COLUMN interference_models.c5 IS 'Constant.';
COMMENT ON COLUMN interference_models.residuals IS 'Relative errors at quantiles; empty if not known.';
COMMENT ON COLUMN interference_models.source IS 'File or folder it came from, or the data it was fitted to.';
COMMENT ON COLUMN interference_models.added_at IS 'Time at which the row was added.';

COMMENT ON TABLE plans IS 'Plans by id, with the whole document.';
COMMENT ON COLUMN plans.plan_id IS 'Id of the plan.';
COMMENT ON COLUMN plans.planner IS 'Planner.';
COMMENT ON COLUMN plans.objective IS 'Objective.';
COMMENT ON COLUMN plans.value IS 'Value of the objective.';
COMMENT ON COLUMN plans.upper_bound IS 'Proven bound of the objective.';
COMMENT ON COLUMN plans.gap IS 'Relative distance of value and bound.';
COMMENT ON COLUMN plans.gpus IS 'GPUs used.';
COMMENT ON COLUMN plans.document IS 'plan.json.';
COMMENT ON COLUMN plans.added_at IS 'Time at which the row was added.';

COMMENT ON TABLE runs IS 'Simulations, loads, quickstarts, what-if curves and backtests.';
COMMENT ON COLUMN runs.run_id IS 'Id of the run.';
COMMENT ON COLUMN runs.kind IS 'simulate, load, quickstart, whatif or backtest.';
COMMENT ON COLUMN runs.plan_id IS 'Id of the plan, if there is one.';
COMMENT ON COLUMN runs.options IS 'Options of the run.';
COMMENT ON COLUMN runs.result IS 'Result of the run.';
COMMENT ON COLUMN runs.report IS 'Page written for it.';
COMMENT ON COLUMN runs.added_at IS 'Time at which the row was added.';

COMMENT ON TABLE run_series IS 'Columns of a run that reports draw.';
COMMENT ON COLUMN run_series.run_id IS 'Id of the run.';
COMMENT ON COLUMN run_series.series IS 'Name of the series, such as latency_us/MODEL.';
COMMENT ON COLUMN run_series.items IS 'Values in order.';

COMMENT ON TABLE whatif_rows IS 'Points of a what-if curve, in order.';
COMMENT ON COLUMN whatif_rows.run_id IS 'Id of the run.';
COMMENT ON COLUMN whatif_rows.position IS 'Place in the curve.';
COMMENT ON COLUMN whatif_rows.varied IS 'Input that was varied.';
COMMENT ON COLUMN whatif_rows.setting IS 'Value of that input, as given.';
COMMENT ON COLUMN whatif_rows.objective IS 'Value of the objective; NULL without a plan.';
COMMENT ON COLUMN whatif_rows.document IS 'Further figures of the point.';

COMMENT ON TABLE figures IS 'Results of benchmarks; the newest of a name counts.';
COMMENT ON COLUMN figures.benchmark IS 'Benchmark.';
COMMENT ON COLUMN figures.name IS 'Name of the figure.';
COMMENT ON COLUMN figures.value IS 'Value.';
COMMENT ON COLUMN figures.unit IS 'Unit of the value.';
COMMENT ON COLUMN figures.target IS 'Target as written, such as "<= 5".';
COMMENT ON COLUMN figures.machine IS 'Machine it was measured on.';
COMMENT ON COLUMN figures.versions IS 'Versions of the software.';
COMMENT ON COLUMN figures.measured_at IS 'Time of the measurement.';

COMMENT ON TABLE model_minutes IS 'Requests per model, minute and plan, by outcome.';
COMMENT ON COLUMN model_minutes.instance IS 'Running system.';
COMMENT ON COLUMN model_minutes.model IS 'Name of the model.';
COMMENT ON COLUMN model_minutes.minute IS 'Start of the minute.';
COMMENT ON COLUMN model_minutes.plan_id IS 'Id of the plan.';
COMMENT ON COLUMN model_minutes.offered IS 'Requests offered.';
COMMENT ON COLUMN model_minutes.served IS 'Requests answered in time.';
COMMENT ON COLUMN model_minutes.late IS 'Requests answered after their deadline.';
COMMENT ON COLUMN model_minutes.dropped IS 'Requests dropped.';
COMMENT ON COLUMN model_minutes.failed IS 'Requests that failed.';
COMMENT ON COLUMN model_minutes.batches IS 'Batches dispatched.';
COMMENT ON COLUMN model_minutes.samples IS 'Samples in those batches.';
COMMENT ON COLUMN model_minutes.latency_sum_us IS 'Sum of the latencies of answered requests in µs.';

COMMENT ON TABLE vgpu_minutes IS 'Batches per vGPU, model, stage and minute.';
COMMENT ON COLUMN vgpu_minutes.instance IS 'Running system.';
COMMENT ON COLUMN vgpu_minutes.plan_id IS 'Id of the plan.';
COMMENT ON COLUMN vgpu_minutes.vgpu IS 'Number of the vGPU in the plan.';
COMMENT ON COLUMN vgpu_minutes.pool IS 'Name of the pool; NULL in migrated rows.';
COMMENT ON COLUMN vgpu_minutes.model IS 'Name of the model.';
COMMENT ON COLUMN vgpu_minutes.stage IS 'Number of the stage in its pipeline.';
COMMENT ON COLUMN vgpu_minutes.gpu_class IS 'GPU class.';
COMMENT ON COLUMN vgpu_minutes.share IS 'Size of the vGPU in 300ths of a GPU.';
COMMENT ON COLUMN vgpu_minutes.minute IS 'Start of the minute.';
COMMENT ON COLUMN vgpu_minutes.batches IS 'Batches.';
COMMENT ON COLUMN vgpu_minutes.busy_us IS 'Measured busy time in µs.';
COMMENT ON COLUMN vgpu_minutes.profiled_us IS 'Time that the profile predicts for the same batches, in µs.';

COMMENT ON TABLE drop_minutes IS 'Dropped requests per model and minute, by reason.';
COMMENT ON COLUMN drop_minutes.instance IS 'Running system.';
COMMENT ON COLUMN drop_minutes.model IS 'Name of the model.';
COMMENT ON COLUMN drop_minutes.minute IS 'Start of the minute.';
COMMENT ON COLUMN drop_minutes.reason IS 'Drop reason.';
COMMENT ON COLUMN drop_minutes.dropped IS 'Requests dropped.';

COMMENT ON TABLE neighbour_minutes IS 'Runs of whole models side by side on one GPU, per minute.';
COMMENT ON COLUMN neighbour_minutes.instance IS 'Running system.';
COMMENT ON COLUMN neighbour_minutes.gpu_class IS 'GPU class.';
COMMENT ON COLUMN neighbour_minutes.model IS 'Model whose runs are counted.';
COMMENT ON COLUMN neighbour_minutes.batch IS 'Samples in a batch.';
COMMENT ON COLUMN neighbour_minutes.share IS 'Size of the vGPU in 300ths of a GPU.';
COMMENT ON COLUMN neighbour_minutes.beside_model IS 'Model that kept the other vGPU busy.';
COMMENT ON COLUMN neighbour_minutes.beside_batch IS 'Batch of that model.';
COMMENT ON COLUMN neighbour_minutes.beside_share IS 'Share of that model in 300ths of a GPU.';
COMMENT ON COLUMN neighbour_minutes.minute IS 'Start of the minute.';
COMMENT ON COLUMN neighbour_minutes.runs IS 'Number of runs.';
COMMENT ON COLUMN neighbour_minutes.busy_us IS 'Measured busy time in µs.';

COMMENT ON TABLE module_minutes IS 'Rows that modules of applications ran, per minute.';
COMMENT ON COLUMN module_minutes.instance IS 'Running system.';
COMMENT ON COLUMN module_minutes.application IS 'Name of the application.';
COMMENT ON COLUMN module_minutes.module IS 'Name of the module.';
COMMENT ON COLUMN module_minutes.minute IS 'Minute in which the requests arrived.';
COMMENT ON COLUMN module_minutes.plan_id IS 'Id of the plan.';
COMMENT ON COLUMN module_minutes.samples IS 'Samples of requests whose number of rows is known.';
COMMENT ON COLUMN module_minutes."rows" IS 'Rows of those samples.';

COMMENT ON TABLE ingested_files IS 'Event files that were ingested.';
COMMENT ON COLUMN ingested_files.path IS 'Path of the file.';
COMMENT ON COLUMN ingested_files.digest IS 'Hash of the content.';
COMMENT ON COLUMN ingested_files."rows" IS 'Rows added from it.';
COMMENT ON COLUMN ingested_files.ingested_at IS 'Time of the ingestion.';

COMMENT ON TABLE ingest_cursors IS 'Position reached in the event files of a source.';
COMMENT ON COLUMN ingest_cursors.source IS 'One life of one gateway.';
COMMENT ON COLUMN ingest_cursors.document IS 'Position and open minutes, in the reader''s own form.';
COMMENT ON COLUMN ingest_cursors.changed_at IS 'Time of the last change.';

COMMENT ON TABLE rollouts IS 'Rollouts and their outcome.';
COMMENT ON COLUMN rollouts.rollout_id IS 'Id of the rollout.';
COMMENT ON COLUMN rollouts.plan_id IS 'Id of the plan.';
COMMENT ON COLUMN rollouts.former_plan_id IS 'Id of the plan that was in force.';
COMMENT ON COLUMN rollouts.state IS 'State reached.';
COMMENT ON COLUMN rollouts.requested_by IS 'User or flow that asked for it.';
COMMENT ON COLUMN rollouts.reason IS 'Reason given.';
COMMENT ON COLUMN rollouts.outcome IS 'Outcome; NULL while it runs.';
COMMENT ON COLUMN rollouts.started_at IS 'Time of the start.';
COMMENT ON COLUMN rollouts.changed_at IS 'Time of the last change.';

COMMENT ON TABLE rollout_steps IS 'Steps of a rollout with their time.';
COMMENT ON COLUMN rollout_steps.rollout_id IS 'Id of the rollout.';
COMMENT ON COLUMN rollout_steps.step IS 'Name of the step.';
COMMENT ON COLUMN rollout_steps.detail IS 'Detail of the step.';
COMMENT ON COLUMN rollout_steps.seconds IS 'Duration in s.';
COMMENT ON COLUMN rollout_steps.done_at IS 'Time at which it ended.';

COMMENT ON VIEW newest_cells IS 'Newest cells of the artifact that was measured last.';
COMMENT ON COLUMN newest_cells.model_key IS 'Hash of content and split, or of imported tables.';
COMMENT ON COLUMN newest_cells.block IS 'Number of the block.';
COMMENT ON COLUMN newest_cells.gpu_class IS 'GPU class.';
COMMENT ON COLUMN newest_cells.share IS 'Size of the vGPU in 300ths of a GPU.';
COMMENT ON COLUMN newest_cells.basis IS 'loaded: other parts of the GPU were busy; solo: they were idle.';
COMMENT ON COLUMN newest_cells.batch IS 'Samples in a batch.';
COMMENT ON COLUMN newest_cells.artifact IS 'Folder below the artifact root; NULL for imported tables.';
COMMENT ON COLUMN newest_cells.mean_us IS 'Mean latency in µs.';
COMMENT ON COLUMN newest_cells.p50_us IS 'Median latency in µs.';
COMMENT ON COLUMN newest_cells.p99_us IS '99th percentile of the latency in µs.';
COMMENT ON COLUMN newest_cells.runs IS 'Number of runs.';
COMMENT ON COLUMN newest_cells."interval" IS 'Relative half-width of the 95 % interval of the mean.';
COMMENT ON COLUMN newest_cells.measured_at IS 'Time of the measurement.';
COMMENT ON COLUMN newest_cells.vgpu_divisor IS 'The vGPU is 1/n of a GPU; NULL for other shares.';

COMMENT ON VIEW run_models IS 'Outcome per model of every run that offered requests.';
COMMENT ON COLUMN run_models.run_id IS 'Id of the run.';
COMMENT ON COLUMN run_models.kind IS 'simulate, load, quickstart, whatif or backtest.';
COMMENT ON COLUMN run_models.plan_id IS 'Id of the plan.';
COMMENT ON COLUMN run_models.added_at IS 'Time at which the row was added.';
COMMENT ON COLUMN run_models.model IS 'Name of the model.';
COMMENT ON COLUMN run_models.offered IS 'Requests offered.';
COMMENT ON COLUMN run_models.served IS 'Requests answered in time.';
COMMENT ON COLUMN run_models.late IS 'Requests answered after their deadline.';
COMMENT ON COLUMN run_models.dropped IS 'Requests dropped.';
COMMENT ON COLUMN run_models.failed IS 'Requests that failed.';
COMMENT ON COLUMN run_models.attainment IS 'Requests served in time over requests offered.';
COMMENT ON COLUMN run_models.p50_ms IS 'Median latency in ms.';
COMMENT ON COLUMN run_models.p99_ms IS '99th percentile of the latency in ms.';

COMMENT ON VIEW plan_inputs IS 'Inputs of a plan, from its document.';
COMMENT ON COLUMN plan_inputs.plan_id IS 'Id of the plan.';
COMMENT ON COLUMN plan_inputs.cluster IS 'Name of the cluster.';
COMMENT ON COLUMN plan_inputs.solver IS 'Solver.';
COMMENT ON COLUMN plan_inputs.solve_seconds IS 'Wall time of planning in s.';
COMMENT ON COLUMN plan_inputs.cluster_document IS 'The cluster.';
COMMENT ON COLUMN plan_inputs.workload_document IS 'The workload.';

COMMENT ON VIEW plan_gpus IS 'GPUs of a plan, by class.';
COMMENT ON COLUMN plan_gpus.plan_id IS 'Id of the plan.';
COMMENT ON COLUMN plan_gpus.gpu_class IS 'GPU class.';
COMMENT ON COLUMN plan_gpus.gpus IS 'GPUs used.';

COMMENT ON VIEW rates_by_minute IS 'Offered and served rates per minute.';
COMMENT ON COLUMN rates_by_minute.minute IS 'Start of the minute.';
COMMENT ON COLUMN rates_by_minute.model IS 'Name of the model.';
COMMENT ON COLUMN rates_by_minute.offered_rps IS 'Offered rate in requests/s.';
COMMENT ON COLUMN rates_by_minute.served_rps IS 'Rate served in time in requests/s.';

COMMENT ON VIEW attainment_by_hour IS 'Share of requests served in time, per hour.';
COMMENT ON COLUMN attainment_by_hour.model IS 'Name of the model.';
COMMENT ON COLUMN attainment_by_hour.hour IS 'Start of the hour.';
COMMENT ON COLUMN attainment_by_hour.offered IS 'Requests offered.';
COMMENT ON COLUMN attainment_by_hour.served IS 'Requests answered in time.';
COMMENT ON COLUMN attainment_by_hour.attainment IS 'Requests served in time over requests offered.';
COMMENT ON COLUMN attainment_by_hour.mean_rps IS 'Mean offered rate in requests/s.';

COMMENT ON VIEW gpus_by_hour IS 'GPUs kept busy beside those planned, per hour.';
COMMENT ON COLUMN gpus_by_hour.plan_id IS 'Id of the plan.';
COMMENT ON COLUMN gpus_by_hour.gpu_class IS 'GPU class.';
COMMENT ON COLUMN gpus_by_hour.hour IS 'Start of the hour.';
COMMENT ON COLUMN gpus_by_hour.gpus_busy IS 'GPUs kept busy; a vGPU counts as its share.';
COMMENT ON COLUMN gpus_by_hour.gpus_planned IS 'GPUs of the plan.';

COMMENT ON VIEW latency_drift IS 'Measured time over profiled time, per hour.';
COMMENT ON COLUMN latency_drift.plan_id IS 'Id of the plan.';
COMMENT ON COLUMN latency_drift.model IS 'Name of the model.';
COMMENT ON COLUMN latency_drift.stage IS 'Number of the stage in its pipeline.';
COMMENT ON COLUMN latency_drift.vgpu IS 'Number of the vGPU in the plan.';
COMMENT ON COLUMN latency_drift.gpu_class IS 'GPU class.';
COMMENT ON COLUMN latency_drift.hour IS 'Start of the hour.';
COMMENT ON COLUMN latency_drift.batches IS 'Batches.';
COMMENT ON COLUMN latency_drift.measured_over_profiled IS 'Measured busy time over profiled time.';
