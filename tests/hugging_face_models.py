"""Small models of Hugging Face's transformers, by name, and what one of them computes from weights and inputs that numpy drew.

`torch` is whatever goes by this name: PyTorch where outputs are recorded, tritorch where they are compared (hugging_face.py).
"""
import zlib

import numpy as np
import torch
import transformers

WORDS = dict(vocab_size=99, pad_token_id=0, bos_token_id=1, eos_token_id=2)
TEXT = dict(WORDS, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, max_position_embeddings=64)
GROUPED = dict(TEXT, num_key_value_heads=2)
HEADS_OF_8 = dict(GROUPED, head_dim=8)
SLIDING = dict(sliding_window=5, layer_types=["sliding_attention", "full_attention"])
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
PAIR = dict(WORDS, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48,
            decoder_ffn_dim=48, max_position_embeddings=64, decoder_start_token_id=1, forced_eos_token_id=None, forced_bos_token_id=None)
T5 = dict(vocab_size=99, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, pad_token_id=0, eos_token_id=2, decoder_start_token_id=0)
IMAGE = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=16, patch_size=4, num_labels=5)
STAGES = dict(hidden_sizes=[16, 32], depths=[1, 1], num_labels=5)
SWIN = dict(image_size=16, patch_size=2, embed_dim=16, depths=[2, 1], num_heads=[2, 4], window_size=4, num_labels=5)
PYRAMID = dict(STAGES, num_encoder_blocks=2, num_attention_heads=[2, 4], mlp_ratios=[2, 2])
TWO = dict(text_config=dict(TEXT, num_hidden_layers=1), vision_config=dict(IMAGE, num_hidden_layers=1), projection_dim=16)
EYE = dict(IMAGE, num_hidden_layers=1)
SOUND = dict(TEXT, vocab_size=32, conv_dim=[16, 16], conv_stride=[5, 2], conv_kernel=[10, 3], num_feat_extract_layers=2, layerdrop=0.0,
             num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=4, mask_time_prob=0.0, mask_feature_prob=0.0)
RESNET = dict(model_type="resnet", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], out_features=["stage2"])

DECODERS = {
    "BloomForCausalLM": dict(TEXT, n_layer=2, n_head=4),
    "CodeGenForCausalLM": dict(TEXT, n_embd=32, n_head=4, n_layer=2, rotary_dim=4, n_inner=48),
    "Cohere2ForCausalLM": dict(GROUPED, **SLIDING),
    "DeepseekV3ForCausalLM": dict(TEXT, num_key_value_heads=4, n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1,
                                  moe_intermediate_size=16, first_k_dense_replace=1, kv_lora_rank=8, q_lora_rank=8, qk_rope_head_dim=4,
                                  qk_nope_head_dim=4, v_head_dim=8),
    "FalconForCausalLM": dict(TEXT, new_decoder_architecture=True, num_kv_heads=2),
    "FalconMambaForCausalLM": dict(TEXT, state_size=4, time_step_rank=4),
    "GPT2LMHeadModel": TEXT,
    "GPTBigCodeForCausalLM": TEXT,
    "GPTJForCausalLM": dict(TEXT, rotary_dim=4, n_inner=48),
    "GPTNeoForCausalLM": dict(TEXT, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]], window_size=4),
    "GPTNeoXForCausalLM": TEXT,
    "GemmaForCausalLM": HEADS_OF_8,
    "Gemma2ForCausalLM": dict(HEADS_OF_8, query_pre_attn_scalar=8, **SLIDING),
    "Gemma3ForCausalLM": dict(HEADS_OF_8, query_pre_attn_scalar=8, **SLIDING),
    "Glm4ForCausalLM": HEADS_OF_8,
    "GptOssForCausalLM": dict(HEADS_OF_8, num_local_experts=4, num_experts_per_tok=2, **SLIDING),
    "GraniteForCausalLM": GROUPED,
    "JambaForCausalLM": dict(GROUPED, attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1, num_experts=4,
                             use_mamba_kernels=False, mamba_d_state=4, mamba_dt_rank=4),
    "Llama4ForCausalLM": dict(HEADS_OF_8, num_local_experts=2, intermediate_size_mlp=48, attention_chunk_size=8),
    "LlamaForCausalLM": GROUPED,
    "Mamba2ForCausalLM": dict(TEXT, state_size=4, num_heads=4, head_dim=16, n_groups=2, chunk_size=4),
    "MambaForCausalLM": dict(TEXT, state_size=4, time_step_rank=4),
    "MistralForCausalLM": dict(GROUPED, sliding_window=5),
    "MixtralForCausalLM": dict(GROUPED, num_local_experts=4),
    "MptForCausalLM": dict(WORDS, d_model=32, n_heads=4, n_layers=2, max_seq_len=64, expansion_ratio=2),
    "NemotronForCausalLM": GROUPED,
    "OPTForCausalLM": dict(TEXT, ffn_dim=48, word_embed_proj_dim=32),
    "Olmo2ForCausalLM": GROUPED,
    "OlmoeForCausalLM": dict(GROUPED, num_experts=4, num_experts_per_tok=2),
    "PersimmonForCausalLM": TEXT,
    "Phi3ForCausalLM": GROUPED,
    "PhiForCausalLM": TEXT,
    "Qwen2ForCausalLM": GROUPED,
    "Qwen2MoeForCausalLM": dict(GROUPED, **EXPERTS, shared_expert_intermediate_size=16),
    "Qwen3ForCausalLM": HEADS_OF_8,
    "Qwen3MoeForCausalLM": dict(HEADS_OF_8, **EXPERTS),
    "RecurrentGemmaForCausalLM": dict(HEADS_OF_8, lru_width=32, attention_window_size=5, block_types=["recurrent", "attention"]),
    "SmolLM3ForCausalLM": GROUPED,
    "StableLmForCausalLM": GROUPED,
    "Starcoder2ForCausalLM": GROUPED,
    "XGLMForCausalLM": dict(WORDS, d_model=32, num_layers=2, attention_heads=4, ffn_dim=48, max_position_embeddings=64),
}
ENCODERS = {
    "AlbertForMaskedLM": dict(TEXT, embedding_size=16),
    "BertForMaskedLM": TEXT,
    "BigBirdForMaskedLM": dict(TEXT, attention_type="original_full"),
    "ConvBertForMaskedLM": dict(TEXT, embedding_size=32, conv_kernel_size=3),
    "DebertaForMaskedLM": dict(TEXT, relative_attention=True, pos_att_type=["p2c", "c2p"], max_relative_positions=8),
    "DebertaV2ForMaskedLM": dict(TEXT, relative_attention=True, pos_att_type=["p2c", "c2p"], position_biased_input=False,
                                 max_relative_positions=8, conv_kernel_size=3),
    "DistilBertForMaskedLM": dict(vocab_size=99, dim=32, n_layers=2, n_heads=4, hidden_dim=48, max_position_embeddings=64),
    "ElectraForMaskedLM": dict(TEXT, embedding_size=16),
    "FNetForMaskedLM": TEXT,
    "LongformerForMaskedLM": dict(TEXT, attention_window=4, sep_token_id=2),
    "MPNetForMaskedLM": TEXT,
    "ModernBertForMaskedLM": dict(TEXT, local_attention=4, global_attn_every_n_layers=2, cls_token_id=1, sep_token_id=2),
    "RoFormerForMaskedLM": dict(TEXT, embedding_size=32),
    "RobertaForMaskedLM": TEXT,
    "SqueezeBertForMaskedLM": dict(TEXT, embedding_size=32),
}
PAIRS = {
    "BartForConditionalGeneration": PAIR,
    "BlenderbotForConditionalGeneration": PAIR,
    "LEDForConditionalGeneration": dict(PAIR, attention_window=4, max_encoder_position_embeddings=64, max_decoder_position_embeddings=64),
    "M2M100ForConditionalGeneration": PAIR,
    "MarianMTModel": dict(PAIR, decoder_vocab_size=99),
    "PegasusForConditionalGeneration": PAIR,
    "T5ForConditionalGeneration": T5,
    "UMT5ForConditionalGeneration": T5,
}
IMAGES = {
    "BeitForImageClassification": dict(IMAGE, use_relative_position_bias=True),
    "ConvNextForImageClassification": dict(STAGES, num_stages=2),
    "ConvNextV2ForImageClassification": dict(STAGES, num_stages=2),
    "DeiTForImageClassification": IMAGE,
    "Dinov2ForImageClassification": IMAGE,
    "FocalNetForImageClassification": dict(STAGES, image_size=32, embed_dim=16, focal_levels=[2, 2], focal_windows=[3, 3]),
    "LevitForImageClassification": dict(image_size=64, num_labels=5, hidden_sizes=[16, 32, 48], num_attention_heads=[2, 4, 6],
                                        depths=[1, 1, 1], key_dim=[8, 8, 8]),
    "MobileNetV2ForImageClassification": dict(num_labels=5, depth_multiplier=0.25, image_size=32),
    "MobileViTForImageClassification": dict(num_labels=5, hidden_sizes=[16, 16, 32], neck_hidden_sizes=[8, 8, 8, 16, 16, 16, 32],
                                            image_size=32, patch_size=2),
    "PoolFormerForImageClassification": dict(num_labels=5, hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1]),
    "PvtForImageClassification": dict(PYRAMID, image_size=32, sequence_reduction_ratios=[2, 1], patch_sizes=[4, 2], strides=[4, 2]),
    "RegNetForImageClassification": dict(STAGES, embedding_size=8, groups_width=8),
    "ResNetForImageClassification": dict(STAGES, embedding_size=8),
    "SegformerForImageClassification": dict(PYRAMID, sr_ratios=[2, 1], patch_sizes=[3, 3], strides=[2, 2]),
    "SwinForImageClassification": SWIN,
    "Swinv2ForImageClassification": SWIN,
    "ViTForImageClassification": IMAGE,
}


def draw(name, *shape, scale=1.0, shift=0.0):
    """A float32 tensor of numbers that depend on the name and the shape alone."""
    drawn = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape) * scale + shift
    return torch.tensor(drawn.astype(np.float32))


def whole(*shape, low=3, high=90):
    return torch.tensor(np.random.default_rng(sum(shape)).integers(low, high, shape))


def image(size=16, number=2):
    return draw("image", number, 3, size, size)


def around(number, token, after):
    """Sequences of words with `number` times the token for pieces of an image in their middle."""
    return torch.cat([whole(2, 3), torch.full((2, number), token), whole(2, after)], 1)


def sound(name, **more):
    return name, dict(SOUND, **more), lambda: dict(input_values=draw("sound", 2, 400), labels=whole(2, 5, high=32))


def words(**labels):
    return lambda: dict(input_ids=whole(2, 8), **(labels or dict(labels=whole(2, 8))))


OTHERS = {name: (config, inputs) for name, config, inputs in [
    sound("HubertForCTC"), sound("SEWForCTC", squeeze_factor=2), sound("Wav2Vec2ForCTC"), sound("WavLMForCTC"),
    sound("Wav2Vec2ConformerForCTC", position_embeddings_type="rotary"),
    ("ASTForAudioClassification", dict(IMAGE, num_mel_bins=16, max_length=24, frequency_stride=4, time_stride=4),
     lambda: dict(input_values=draw("sound", 2, 24, 16), labels=torch.tensor([1, 3]))),
    ("BertForQuestionAnswering", TEXT, words(start_positions=torch.tensor([1, 2]), end_positions=torch.tensor([3, 4]))),
    ("BertForSequenceClassification", dict(TEXT, num_labels=3), words(labels=torch.tensor([1, 2]))),
    ("CLIPModel", TWO, lambda: dict(input_ids=whole(2, 7), pixel_values=image(), return_loss=True)),
    ("DecisionTransformerModel", dict(state_dim=3, act_dim=2, hidden_size=32, n_layer=1, n_head=4, max_ep_len=32),
     lambda: dict(states=draw("s", 2, 5, 3), actions=draw("a", 2, 5, 2), rewards=draw("r", 2, 5, 1), returns_to_go=draw("g", 2, 5, 1),
                  timesteps=whole(2, 5, high=32), attention_mask=torch.ones(2, 5))),
    ("DetrForObjectDetection", dict(use_timm_backbone=False, backbone=None, backbone_config=RESNET, d_model=32, encoder_layers=1,
                                    decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48,
                                    decoder_ffn_dim=48, num_queries=6, num_labels=5), lambda: dict(pixel_values=image(64))),
    ("EncodecModel", dict(num_filters=4, upsampling_ratios=[2, 2], hidden_size=16, codebook_size=16, target_bandwidths=[24.0],
                          sampling_rate=8000, num_lstm_layers=1), lambda: dict(input_values=draw("sound", 2, 1, 64))),
    ("FunnelForMaskedLM", dict(vocab_size=99, d_model=32, block_sizes=[1, 1], num_decoder_layers=1, n_head=4, d_head=8, d_inner=48),
     words()),
    ("Idefics3ForConditionalGeneration", dict(text_config=dict(GROUPED, model_type="llama"), vision_config=EYE, image_token_id=98,
                                              scale_factor=2),
     lambda: dict(input_ids=around(4, 98, 3), pixel_values=image()[:, None], labels=whole(2, 10))),
    ("LlavaForConditionalGeneration", dict(text_config=dict(GROUPED, model_type="llama"), image_token_index=98, image_seq_length=16,
                                           vision_config=dict(EYE, model_type="clip_vision_model"), vision_feature_layer=-1),
     lambda: dict(input_ids=around(16, 98, 3), pixel_values=image(), labels=whole(2, 22))),
    ("MusicgenForCausalLM", dict(TEXT, ffn_dim=48, num_codebooks=2, pad_token_id=98, bos_token_id=98), lambda: dict(input_ids=whole(4, 8))),
    ("NystromformerForMaskedLM", dict(TEXT, num_landmarks=4, segment_means_seq_len=8), words()),
    ("PatchTSTForPrediction", dict(num_input_channels=3, context_length=16, patch_length=4, patch_stride=4, d_model=16,
                                   num_attention_heads=2, ffn_dim=24, num_hidden_layers=2, prediction_length=4),
     lambda: dict(past_values=draw("past", 2, 16, 3), future_values=draw("future", 2, 4, 3))),
    ("PerceiverForMaskedLM", dict(vocab_size=99, num_latents=8, d_latents=32, d_model=16, num_blocks=1, num_self_attends_per_block=1,
                                  num_self_attention_heads=2, num_cross_attention_heads=2, max_position_embeddings=8), words()),
    ("Qwen2VLForConditionalGeneration",
     dict(text_config=dict(GROUPED, rope_parameters=dict(type="mrope", mrope_section=[1, 1, 2], rope_theta=1e4)), image_token_id=98,
          vision_config=dict(depth=1, embed_dim=32, num_heads=4, hidden_size=32, patch_size=4, mlp_ratio=2), vision_start_token_id=97,
          video_token_id=96),
     lambda: dict(input_ids=around(4, 98, 3), pixel_values=draw("patches", 32, 96), image_grid_thw=torch.tensor([[1, 4, 4]] * 2),
                  mm_token_type_ids=around(4, 98, 3).eq(98).long(), labels=whole(2, 10))),
    ("SamModel", dict(vision_config=dict(hidden_size=32, output_channels=16, num_hidden_layers=1, num_attention_heads=4, image_size=32,
                                         patch_size=4, window_size=4, mlp_dim=32, global_attn_indexes=[0], num_pos_feats=8),
                      prompt_encoder_config=dict(hidden_size=16, image_size=32, patch_size=4),
                      mask_decoder_config=dict(hidden_size=16, mlp_dim=16, num_attention_heads=2, iou_head_hidden_dim=16)),
     lambda: dict(pixel_values=image(32), input_points=draw("points", 2, 1, 2, 2) * 8 + 16, input_labels=torch.ones(2, 1, 2).long())),
    ("SegformerForSemanticSegmentation", dict(IMAGES["SegformerForImageClassification"], decoder_hidden_size=16),
     lambda: dict(pixel_values=image(), labels=whole(2, 16, 16, low=0, high=5))),
    ("SiglipModel", TWO, lambda: dict(input_ids=whole(2, 7), pixel_values=image(), return_loss=True)),
    ("VideoMAEForVideoClassification", dict(IMAGE, num_frames=4, tubelet_size=2),
     lambda: dict(pixel_values=draw("video", 2, 4, 3, 16, 16), labels=torch.tensor([1, 3]))),
    ("ViTMAEForPreTraining", dict(IMAGE, decoder_hidden_size=16, decoder_num_hidden_layers=1, decoder_num_attention_heads=2,
                                  decoder_intermediate_size=32), lambda: dict(pixel_values=image(), noise=draw("noise", 2, 16))),
    ("WhisperForConditionalGeneration", dict(PAIR, num_mel_bins=8, max_source_positions=10, max_target_positions=32, suppress_tokens=None,
                                             begin_suppress_tokens=None),
     lambda: dict(input_features=draw("sound", 2, 8, 20), labels=whole(2, 7))),
    ("XLNetLMHeadModel", dict(WORDS, d_model=32, n_layer=2, n_head=4, d_inner=48), words()),
]}
NAMES = [*DECODERS, *ENCODERS, *PAIRS, *IMAGES, *OTHERS]
WAYS = {"greedy": {}, "beams": dict(num_beams=3), "static cache": dict(cache_implementation="static")}


def configured(name):
    """The model, with drawn weights, without dropout."""
    config = next(table[name] for table in (DECODERS, ENCODERS, PAIRS, IMAGES, OTHERS) if name in table)
    kind = getattr(transformers, name)
    model = kind(kind.config_class(**(config[0] if name in OTHERS else config)))
    with torch.no_grad():
        for key, p in model.named_parameters():
            scale = 0.1 if p.ndim < 2 else p[0].numel() ** -0.5
            p.copy_(draw(key, *p.shape, scale=scale, shift=float(p.ndim < 2 and key.endswith("weight"))))
    return model.eval()


def inputs_of(name):
    """What the model takes. Of texts a part is padding: before decoders' words, behind those of others."""
    if name in OTHERS:
        return OTHERS[name][1]()
    if name in IMAGES:
        return dict(pixel_values=image(IMAGES[name].get("image_size", 32), 4), labels=torch.tensor([1, 3, 0, 4]))
    ids, seen = whole(2, 9), torch.ones(2, 9, dtype=torch.int64)
    ids[0, slice(3) if name in DECODERS else slice(-3, None)] = 0
    seen[ids == 0] = 0
    labels = whole(2, 7) if name in PAIRS else ids.masked_fill(seen == 0, -100)
    labels[0, :4] = -100                                                     # the first is foretold by padding, which sees nothing
    return dict(input_ids=ids, attention_mask=seen, labels=labels)


def traits(x, number=4):
    """Shape, norm, and sums of a tensor with random weights of N(0, 1), which differ from those of another tensor by about the norm of
    the difference."""
    x = np.asarray(x.detach().cpu().double().numpy())
    sums = np.random.default_rng(x.size).standard_normal((number, x.size)) @ x.ravel()
    return [list(x.shape), float(np.linalg.norm(x)), *map(float, sums)]


def computed(name, device="cpu"):
    """Logits, loss, gradients, and texts by every one of WAYS, as JSON has it."""
    model = configured(name).to(device)
    inputs = {key: x.to(device) if isinstance(x, torch.Tensor) else x for key, x in inputs_of(name).items()}
    out = model(**inputs)
    main = next(x for key, x in out.items() if key != "loss" and isinstance(x, torch.Tensor) and x.is_floating_point() and x.ndim)
    if name in DECODERS or name in ENCODERS:
        main = main[inputs["attention_mask"] == 1]
    loss = out.get("loss")
    loss = main.square().mean() if loss is None else loss
    loss.backward()
    found = {"output": traits(main), "loss": loss.item(),
             "gradients": {key: None if p.grad is None else traits(p.grad, 1)[1:] for key, p in model.named_parameters()}}
    if name in DECODERS or name in PAIRS:
        del inputs["labels"]
        found["texts"] = {way: model.generate(**inputs, max_new_tokens=6, do_sample=False, **how).tolist() for way, how in WAYS.items()}
    return found
